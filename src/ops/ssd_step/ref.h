#pragma once

// The meaning of ssd_step, in plain loops, for one head. With Real = double this is the definition;
// with Real = float it is what rounding costs an implementation that takes no special care.

#include <cmath>
#include <cstdint>
#include <span>

#include "ops/chunk_cumsum/ref.h"

namespace adder::ref {

/// `state` (headdim, dstate) is updated; `y` (headdim) is the output before gating. `D` is one
/// value, headdim values, or empty.
template <typename Real>
void ssd_step_head(Real dt, Real A, std::span<const Real> x, std::span<const Real> B,
                   std::span<const Real> C, std::span<const Real> D, std::span<Real> state,
                   std::span<Real> y) {
  const std::size_t dstate = B.size();
  const Real decay = std::exp(dt * A);
  for (std::size_t p = 0; p < x.size(); ++p) {
    Real sum = 0;
    for (std::size_t n = 0; n < dstate; ++n) {
      Real& s = state[p * dstate + n];
      s = decay * s + dt * x[p] * B[n];
      sum += s * C[n];
    }
    if (!D.empty()) sum += D[D.size() == 1 ? 0 : p] * x[p];
    y[p] = sum;
  }
}

/// v · sigmoid(v), finite for every finite v.
template <typename Real>
Real silu(Real v) {
  return v / (1 + std::exp(-v));
}

}  // namespace adder::ref
