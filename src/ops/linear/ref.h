#pragma once

// The meaning of linear, in plain loops. With Real = double this is the definition; with Real =
// float it is what rounding costs.

#include <cstdint>
#include <span>

namespace adder::ref {

/// One token: x (in_features), weight (out_features, in_features) row-major, bias (out_features) or
/// empty, y (out_features).
template <typename Real>
void linear_row(std::span<const Real> x, std::span<const Real> weight, std::span<const Real> bias,
                std::span<Real> y) {
  for (std::size_t o = 0; o < y.size(); ++o) {
    Real sum = bias.empty() ? Real{0} : bias[o];
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * weight[o * x.size() + i];
    y[o] = sum;
  }
}

}  // namespace adder::ref
