#pragma once

// What the chunked algorithm costs in accuracy at the precision of a kernel for matrix units, in
// plain loops: sums in float32 and prefix sums in float64, factors of products with as many digits
// as the inputs' dtype. For tests of such kernels; the meaning of ssd_forward is in ref.h.

#include <vector>

#include "ops/chunk_cumsum/ref.h"
#include "ops/chunk_cumsum/test_plan.h"
#include "ops/compute_out/ref.h"
#include "ops/fwd_pass_state/ref.h"
#include "ops/ssd_forward/ref.h"

namespace adder::test {

/// One head of one sequence, chunk by chunk.
class PlainChunks {
 public:
  /// `digits`: a dtype that has as many as factors of products.
  PlainChunks(const SsdForwardArgs& args, std::int64_t head, DType digits)
      : args_(args), head_(head), group_(head / (args.x.dim(2) / args.B.dim(2))), rounded_{digits} {
    if (args.D.defined()) {
      D_ = args.D.rank == 2 ? ref::row_of<float>(args.D, {head})
                            : std::vector<float>{ref::element<float>(args.D, {head})};
    }
  }

  /// Updates `state` (headdim, dstate) and writes y of the chunk's tokens.
  void advance(const Chunk& chunk, std::vector<float>& state, std::vector<float>& y) const {
    if (chunk.restarts) std::fill(state.begin(), state.end(), 0.0F);
    const DtOptions options{args_.dt_softplus, args_.dt_min, args_.dt_max};
    const float bias = args_.dt_bias.defined() ? ref::element<float>(args_.dt_bias, {head_}) : 0.0F;
    std::vector<float> dt;
    for (std::int64_t i = 0; i < chunk.length; ++i) {
      const float raw = ref::element<float>(args_.dt, {chunk.row, chunk.begin + i, head_});
      dt.push_back(ref::time_step<float>(raw + bias, options));
    }
    const std::vector<double> wide_dt(dt.begin(), dt.end());
    std::vector<double> sums(dt.size());
    ref::chunk_cumsum<double>(wide_dt, ref::element<double>(args_.A, {head_}), sums);
    const auto x = rows(args_.x, chunk, head_);
    const auto B = rows(args_.B, chunk, group_);
    const auto out = ref::compute_out_chunk<float, double>(
        sums, dt, x, B, rows(args_.C, chunk, group_), D_,
        args_.z.defined() ? rows(args_.z, chunk, head_) : std::vector<float>(), state, rounded_);
    ref::fwd_pass_state_chunk<float, double>(sums, dt, x, B, state, rounded_);
    const auto headdim = static_cast<std::size_t>(args_.x.dim(3));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t token =
          chunk.row * args_.x.dim(1) + chunk.begin + static_cast<std::int64_t>(i / headdim);
      y[static_cast<std::size_t>(token * args_.x.dim(2) + head_) * headdim + i % headdim] = out[i];
    }
  }

 private:
  static std::vector<float> rows(const ConstTensorView& view, const Chunk& chunk,
                                 std::int64_t column) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < chunk.length; ++i) {
      const auto row = ref::row_of<float>(view, {chunk.row, chunk.begin + i, column});
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  const SsdForwardArgs& args_;
  const std::int64_t head_, group_;
  const ref::DigitsOf rounded_;
  std::vector<float> D_;
};

/// `args` are in host memory; y and final_states are neither read nor written. Factors of products
/// have as many digits as `digits`.
inline ref::SsdResult<float> plain_chunked(const SsdForwardArgs& args, DType digits) {
  constexpr std::int64_t kChunkSize = 64;
  const OwnedPlan p({args.x.dim(0), args.x.dim(1), kChunkSize, args.cu_seqlens, args.seq_idx});
  const std::int64_t headdim = args.x.dim(3);
  const std::int64_t dstate = args.B.dim(3);
  ref::SsdResult<float> result;
  result.y.resize(static_cast<std::size_t>(args.x.numel()));
  for (std::int64_t s = 0; s < p.plan.nsequences(); ++s) {
    for (std::int64_t head = 0; head < args.x.dim(2); ++head) {
      const PlainChunks chunks(args, head, digits);
      std::vector<float> state(static_cast<std::size_t>(headdim * dstate));
      for (std::int64_t i = 0; args.initial_states.defined() && i < headdim * dstate; ++i) {
        state[static_cast<std::size_t>(i)] =
            ref::element<float>(args.initial_states, {s, head, i / dstate, i % dstate});
      }
      for (auto c = p.first_chunk[static_cast<std::size_t>(s)];
           c < p.first_chunk[static_cast<std::size_t>(s) + 1]; ++c) {
        chunks.advance(p.chunks[static_cast<std::size_t>(c)], state, result.y);
      }
      result.final_states.insert(result.final_states.end(), state.begin(), state.end());
    }
  }
  return result;
}

/// The same with the digits of the inputs' dtype.
inline ref::SsdResult<float> plain_chunked(const SsdForwardArgs& args) {
  return plain_chunked(args, args.x.dtype);
}

}  // namespace adder::test
