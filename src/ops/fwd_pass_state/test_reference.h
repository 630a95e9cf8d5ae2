#pragma once

// fwd_pass_state over whole inputs, in plain loops.

#include <vector>

#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/fwd_pass_state/ref.h"
#include "ops/fwd_pass_state/test_case.h"

namespace adder::test {

struct ChunkStates {
  std::vector<double> states;  ///< (nchunks, nheads, dstate, padded headdim)
  std::vector<double> final_states;
};

/// `initial_states` (nsequences, nheads, headdim, dstate) may be empty: zeros. Differences of
/// prefix sums are taken as Sum, factors rounded with `rounded`.
template <typename Real, typename Sum = Real, typename Rounding = ref::Exact>
ChunkStates reference_states(const ChunkInputs& in, const std::vector<float>& initial_states,
                             const Rounding& rounded = {}) {
  const ChunkShape& s = in.shape;
  const std::int64_t columns = padded_headdim(s.headdim);
  const auto state_size = static_cast<std::size_t>(s.headdim * s.dstate);
  ChunkStates out;
  out.states.resize(in.chunks.size() * static_cast<std::size_t>(s.nheads * s.dstate * columns));
  for (std::int64_t q = 0; q < in.plan.nsequences(); ++q) {
    for (std::int64_t h = 0; h < s.nheads; ++h) {
      std::vector<Real> state(state_size);
      const auto begin = static_cast<std::size_t>(q * s.nheads + h) * state_size;
      for (std::size_t i = 0; i < state_size && !initial_states.empty(); ++i) {
        state[i] = static_cast<Real>(initial_states[begin + i]);
      }
      for (auto c = static_cast<std::size_t>(in.first_chunk[static_cast<std::size_t>(q)]);
           c < static_cast<std::size_t>(in.first_chunk[static_cast<std::size_t>(q) + 1]); ++c) {
        if (in.chunks[c].restarts) std::fill(state.begin(), state.end(), Real{0});
        for (std::int64_t p = 0; p < s.headdim; ++p) {
          for (std::int64_t n = 0; n < s.dstate; ++n) {
            out.states[static_cast<std::size_t>(
                ((static_cast<std::int64_t>(c) * s.nheads + h) * s.dstate + n) * columns + p)] =
                static_cast<double>(state[static_cast<std::size_t>(p * s.dstate + n)]);
          }
        }
        ref::fwd_pass_state_chunk<Real, Sum>(
            in.sums<Sum>(c, h), in.steps<Real>(c, h), in.rows<Real>(in.x, c, h),
            in.rows<Real>(in.B, c, h / (s.nheads / s.ngroups)), state, rounded);
      }
      out.final_states.insert(out.final_states.end(), state.begin(), state.end());
    }
  }
  return out;
}

inline std::vector<float> to_floats(const std::vector<double>& v) { return {v.begin(), v.end()}; }

}  // namespace adder::test
