#pragma once

// compute_out over whole inputs, in plain loops, and random states to start from.

#include <vector>

#include "ops/compute_out/compute_out.h"
#include "ops/compute_out/ref.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/fwd_pass_state/test_case.h"
#include "tests/support/random.h"

namespace adder::test {

/// (nchunks, nheads, dstate, padded headdim), zero padded.
inline Tensor random_states(const ChunkInputs& in) {
  const ChunkShape& s = in.shape;
  const std::int64_t columns = padded_headdim(s.headdim);
  Random random(3);
  Tensor states = Tensor::zeros(DType::f32, {in.plan.nchunks(), s.nheads, s.dstate, columns});
  for (std::int64_t row = 0; row < in.plan.nchunks() * s.nheads * s.dstate; ++row) {
    for (std::int64_t p = 0; p < s.headdim; ++p) {
      states.as<float>()[row * columns + p] = static_cast<float>(random.uniform(-1, 1));
    }
  }
  return states;
}

/// (batch, seqlen, nheads, headdim). Differences of prefix sums are taken as Sum, factors rounded
/// with `rounded`.
template <typename Real, typename Sum = Real, typename Rounding = ref::Exact>
std::vector<Real> reference_outputs(const ChunkInputs& in, const Tensor& states,
                                    const Rounding& rounded = {}) {
  const ChunkShape& s = in.shape;
  const std::int64_t columns = padded_headdim(s.headdim);
  std::vector<Real> y(static_cast<std::size_t>(in.x.view.numel()));
  for (std::size_t c = 0; c < in.chunks.size(); ++c) {
    for (std::int64_t h = 0; h < s.nheads; ++h) {
      const std::int64_t group = h / (s.nheads / s.ngroups);
      std::vector<Real> state;
      for (std::int64_t p = 0; p < s.headdim; ++p) {
        for (std::int64_t n = 0; n < s.dstate; ++n) {
          state.push_back(static_cast<Real>(
              states.as<float>()
                  [((static_cast<std::int64_t>(c) * s.nheads + h) * s.dstate + n) * columns + p]));
        }
      }
      const float* D = in.D.as<float>() + h * s.headdim;
      const auto out = ref::compute_out_chunk<Real, Sum>(
          in.sums<Sum>(c, h), in.steps<Real>(c, h), in.rows<Real>(in.x, c, h),
          in.rows<Real>(in.B, c, group), in.rows<Real>(in.C, c, group), {D, D + s.headdim},
          in.rows<Real>(in.z, c, h), state, rounded);
      const Chunk& chunk = in.chunks[c];
      for (std::int64_t i = 0; i < chunk.length * s.headdim; ++i) {
        const std::int64_t token = chunk.row * s.seqlen + chunk.begin + i / s.headdim;
        y[static_cast<std::size_t>((token * s.nheads + h) * s.headdim + i % s.headdim)] =
            out[static_cast<std::size_t>(i)];
      }
    }
  }
  return y;
}

}  // namespace adder::test
