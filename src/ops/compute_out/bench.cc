#include <algorithm>
#include <cmath>

#include "bench/op_benchmark.h"
#include "ops/compute_out/compute_out.h"
#include "ops/compute_out/ref.h"
#include "ops/fwd_pass_state/bench_case.h"

namespace adder::bench {
namespace {

Measurement measure(const ChunkShape& s, std::int64_t seqlen, ThreadPool& pool,
                    double min_seconds) {
  ChunkInputs in(s, seqlen, pool);
  const std::int64_t nchunks = in.plan.nchunks();
  const ComputeOutArgs args{
      .x = ConstTensorView::of(in.x.data(), {1, seqlen, s.nheads, s.headdim}),
      .B = ConstTensorView::of(in.B.data(), {1, seqlen, 1, s.dstate}),
      .C = ConstTensorView::of(in.C.data(), {1, seqlen, 1, s.dstate}),
      .dt = ConstTensorView::of(in.dt.data(), {s.nheads, nchunks, kBenchChunk}),
      .dA_cumsum = ConstTensorView::of(in.dA_cumsum.data(), {s.nheads, nchunks, 2, kBenchChunk}),
      .states = ConstTensorView::of(in.states.data(),
                                    {nchunks, s.nheads, s.dstate, padded_headdim(s.headdim)}),
      .D = {},
      .z = {},
      .plan = in.plan,
      .y = TensorView::of(in.y.data(), {1, seqlen, s.nheads, s.headdim})};
  std::vector<std::byte> workspace(cpu::compute_out_workspace_bytes(args, pool.nthreads()));
  cpu::compute_out(args, workspace, pool);

  // The first head's first chunk; states are zero.
  const auto truth = ref::compute_out_chunk<double>(
      in.first_sums(), {in.dt.begin(), in.dt.begin() + in.chunks[0].length},
      in.first_rows(in.x, s.nheads * s.headdim, s.headdim), in.first_rows(in.B, s.dstate, s.dstate),
      in.first_rows(in.C, s.dstate, s.dstate), {}, {},
      std::vector<double>(static_cast<std::size_t>(s.headdim * s.dstate)));
  const auto got = in.first_rows(in.y, s.nheads * s.headdim, s.headdim);
  Measurement out;
  out.shape = describe(s, seqlen);
  out.allowed_error = 1e-5;
  double sum_of_squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    out.error = std::max(out.error, std::abs(got[i] - truth[i]));
    sum_of_squares += truth[i] * truth[i];
  }
  out.error /= std::sqrt(sum_of_squares / static_cast<double>(truth.size()));
  require_accuracy("compute_out", out.shape, out.error, out.allowed_error);

  const auto tokens = static_cast<double>(seqlen);
  const auto chunk = static_cast<double>(kBenchChunk);
  out.flops = static_cast<double>(in.x.size()) * (2.0 * static_cast<double>(s.dstate) + chunk) +
              tokens * chunk * static_cast<double>(s.dstate);
  out.bytes = 4.0 * static_cast<double>(2 * in.x.size() + 2 * in.B.size() + 3 * in.dt.size() +
                                        in.states.size());
  out.timing = time_calls([&] { cpu::compute_out(args, workspace, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark compute_out_benchmark() {
  return {.name = "compute_out",
          .description = "outputs of the state-space dual from states and chunks",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (const ChunkShape& shape : kChunkShapes) {
              out.push_back(measure(shape, 512, pool, min_seconds));
            }
            return out;
          }};
}

}  // namespace adder::bench
