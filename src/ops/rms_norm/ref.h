#pragma once

// The meaning of rms_norm, in plain loops. With Real = double this is the definition; with Real =
// float it is what rounding costs an implementation that takes no special care.

#include <cmath>
#include <cstdint>
#include <span>

namespace adder::ref {

/// One row: `residual` (d_model) is updated by `x` if that is not empty; `weight` may be empty.
template <typename Real>
void rms_norm_row(std::span<Real> residual, std::span<const Real> x, std::span<const Real> weight,
                  Real epsilon, std::span<Real> y) {
  const std::size_t d_model = residual.size();
  Real sum_of_squares = 0;
  for (std::size_t i = 0; i < d_model; ++i) {
    if (!x.empty()) residual[i] += x[i];
    sum_of_squares += residual[i] * residual[i];
  }
  const Real scale = 1 / std::sqrt(sum_of_squares / static_cast<Real>(d_model) + epsilon);
  for (std::size_t i = 0; i < d_model; ++i) {
    y[i] = residual[i] * scale * (weight.empty() ? Real{1} : weight[i]);
  }
}

}  // namespace adder::ref
