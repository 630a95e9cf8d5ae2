#pragma once

// The meaning of gated_rms_norm, in plain loops. With Real = double this is the definition; with
// Real = float it is what rounding costs an implementation that takes no special care.

#include <cmath>
#include <cstddef>
#include <span>

namespace adder::ref {

/// One token: `y` and `out` are (d_inner); `z` and `weight` are too, or empty.
template <typename Real>
void gated_rms_norm_row(std::span<const Real> y, std::span<const Real> z,
                        std::span<const Real> weight, std::size_t ngroups, Real epsilon,
                        bool norm_before_gate, bool norm, std::span<Real> out) {
  const auto gate = [&](std::size_t i) {
    return z.empty() ? Real{1} : z[i] / (1 + std::exp(-z[i]));
  };
  const std::size_t size = y.size() / ngroups;
  for (std::size_t group = 0; group < ngroups; ++group) {
    Real sum_of_squares = 0;
    for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
      const Real v = norm_before_gate ? y[i] : y[i] * gate(i);
      sum_of_squares += v * v;
    }
    const Real scale =
        norm ? 1 / std::sqrt(sum_of_squares / static_cast<Real>(size) + epsilon) : Real{1};
    for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
      out[i] = y[i] * gate(i) * scale * (weight.empty() ? Real{1} : weight[i]);
    }
  }
}

}  // namespace adder::ref
