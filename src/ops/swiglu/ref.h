#pragma once

// The meaning of swiglu, in plain loops.

#include <cmath>
#include <cstddef>
#include <span>

namespace adder::ref {

template <typename Real>
void swiglu(std::span<const Real> x, std::span<const Real> gate, std::span<Real> y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * (gate[i] / (1 + std::exp(-gate[i])));
}

}  // namespace adder::ref
