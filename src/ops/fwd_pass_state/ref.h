#pragma once

// The meaning of fwd_pass_state, in plain loops, for one head of one chunk. With Real = double this
// is the definition; with Real = float it is what rounding costs an implementation that takes no
// special care.

#include <cmath>
#include <cstdint>
#include <vector>

namespace adder::ref {

/// `sums` and `dt` hold the chunk's tokens; x is (tokens, headdim), B (tokens, dstate). `state`
/// (headdim, dstate) becomes the state after the chunk.
template <typename Real>
void fwd_pass_state_chunk(const std::vector<Real>& sums, const std::vector<Real>& dt,
                          const std::vector<Real>& x, const std::vector<Real>& B,
                          std::vector<Real>& state) {
  const std::size_t ntokens = dt.size();
  const std::size_t headdim = x.size() / ntokens;
  const std::size_t dstate = B.size() / ntokens;
  for (std::size_t p = 0; p < headdim; ++p) {
    for (std::size_t n = 0; n < dstate; ++n) {
      Real sum = std::exp2(sums.back()) * state[p * dstate + n];
      for (std::size_t j = 0; j < ntokens; ++j) {
        sum += std::exp2(sums.back() - sums[j]) * dt[j] * x[j * headdim + p] * B[j * dstate + n];
      }
      state[p * dstate + n] = sum;
    }
  }
}

}  // namespace adder::ref
