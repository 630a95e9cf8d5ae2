#pragma once

// The meaning of fwd_pass_state, in plain loops, for one head of one chunk. With Real = double this
// is the definition; with Real = float it is what rounding costs an implementation that takes no
// special care, and with a rounding besides what it costs one for matrix units.

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/chunk_cumsum/ref.h"

namespace adder::ref {

/// `sums` and `dt` hold the chunk's tokens; x is (tokens, headdim), B (tokens, dstate). `state`
/// (headdim, dstate) becomes the state after the chunk. Differences of `sums` are taken as Sum.
template <typename Real, typename Sum = Real, typename Rounding = Exact>
void fwd_pass_state_chunk(const std::vector<Sum>& sums, const std::vector<Real>& dt,
                          const std::vector<Real>& x, const std::vector<Real>& B,
                          std::vector<Real>& state, const Rounding& rounded = {}) {
  const std::size_t ntokens = dt.size();
  const std::size_t headdim = x.size() / ntokens;
  const std::size_t dstate = B.size() / ntokens;
  for (std::size_t p = 0; p < headdim; ++p) {
    for (std::size_t n = 0; n < dstate; ++n) {
      Real sum = std::exp2(static_cast<Real>(sums.back())) * state[p * dstate + n];
      for (std::size_t j = 0; j < ntokens; ++j) {
        const Real decay = std::exp2(static_cast<Real>(sums.back() - sums[j]));
        sum += rounded(decay * dt[j] * B[j * dstate + n]) * x[j * headdim + p];
      }
      state[p * dstate + n] = sum;
    }
  }
}

}  // namespace adder::ref
