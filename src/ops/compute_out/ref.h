#pragma once

// The meaning of compute_out, in plain loops, for one head of one chunk. With Real = double this is
// the definition; with Real = float it is what rounding costs an implementation that takes no
// special care, and with a rounding besides what it costs one for matrix units.

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/chunk_cumsum/ref.h"

namespace adder::ref {

/// `sums` and `dt` hold the chunk's tokens; x is (tokens, headdim), B and C (tokens, dstate), D and
/// z (headdim or one) and (tokens, headdim) or empty; `state` (headdim, dstate) is that before the
/// chunk. Returns y (tokens, headdim). Differences of `sums` are taken as Sum.
template <typename Real, typename Sum = Real, typename Rounding = Exact>
std::vector<Real> compute_out_chunk(const std::vector<Sum>& sums, const std::vector<Real>& dt,
                                    const std::vector<Real>& x, const std::vector<Real>& B,
                                    const std::vector<Real>& C, const std::vector<Real>& D,
                                    const std::vector<Real>& z, const std::vector<Real>& state,
                                    const Rounding& rounded = {}) {
  const std::size_t ntokens = dt.size();
  const std::size_t headdim = x.size() / ntokens;
  const std::size_t dstate = B.size() / ntokens;
  std::vector<Real> y;
  for (std::size_t i = 0; i < ntokens; ++i) {
    std::vector<Real> weights;
    for (std::size_t j = 0; j <= i; ++j) {
      Real score = 0;
      for (std::size_t n = 0; n < dstate; ++n) score += C[i * dstate + n] * B[j * dstate + n];
      const Real decay = std::exp2(static_cast<Real>(sums[i] - sums[j]));
      weights.push_back(rounded(score * decay * dt[j]));
    }
    for (std::size_t p = 0; p < headdim; ++p) {
      Real sum = 0;
      for (std::size_t n = 0; n < dstate; ++n) {
        sum += C[i * dstate + n] * rounded(state[p * dstate + n]);
      }
      sum *= std::exp2(static_cast<Real>(sums[i]));
      for (std::size_t j = 0; j <= i; ++j) sum += weights[j] * x[j * headdim + p];
      if (!D.empty()) sum += D[D.size() == 1 ? 0 : p] * x[i * headdim + p];
      if (!z.empty()) sum *= z[i * headdim + p] / (1 + std::exp(-z[i * headdim + p]));
      y.push_back(sum);
    }
  }
  return y;
}

}  // namespace adder::ref
