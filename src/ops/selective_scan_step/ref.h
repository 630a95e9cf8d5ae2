#pragma once

// The meaning of selective_scan_step: one token of the recurrence, written out again on its own, so
// that the scan and the step do not share a mistake.

#include <cmath>
#include <cstddef>
#include <span>

namespace adder::ref {

/// One sequence. `x`, `dt_raw` and `y` are (d_inner), `A` and `state` (d_inner, dstate), `B` and
/// `C` (ngroups, dstate); `D`, `z` and `dt_bias` are (d_inner) or empty.
template <typename Real>
void selective_scan_step(std::span<const Real> x, std::span<const Real> dt_raw,
                         std::span<const Real> A, std::span<const Real> B, std::span<const Real> C,
                         std::span<const Real> D, std::span<const Real> z,
                         std::span<const Real> dt_bias, bool dt_softplus, std::size_t dstate,
                         std::span<Real> state, std::span<Real> y) {
  const std::size_t d_inner = x.size();
  const std::size_t group_size = d_inner * dstate / B.size();
  for (std::size_t d = 0; d < d_inner; ++d) {
    Real dt = dt_raw[d] + (dt_bias.empty() ? Real{0} : dt_bias[d]);
    if (dt_softplus && dt <= 20) dt = std::log1p(std::exp(dt));
    Real sum = 0;
    for (std::size_t n = 0; n < dstate; ++n) {
      Real& h = state[d * dstate + n];
      const std::size_t bc = d / group_size * dstate + n;
      h = h * std::exp(dt * A[d * dstate + n]) + dt * x[d] * B[bc];
      sum += h * C[bc];
    }
    if (!D.empty()) sum += D[d] * x[d];
    y[d] = z.empty() ? sum : sum * (z[d] / (1 + std::exp(-z[d])));
  }
}

}  // namespace adder::ref
