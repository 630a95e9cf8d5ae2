#include <algorithm>
#include <cmath>

#include "bench/op_benchmark.h"
#include "ops/fwd_pass_state/bench_case.h"
#include "ops/fwd_pass_state/ref.h"

namespace adder::bench {
namespace {

Measurement measure(const ChunkShape& s, std::int64_t seqlen, ThreadPool& pool,
                    double min_seconds) {
  ChunkInputs in(s, seqlen, pool);
  const std::int64_t nchunks = in.plan.nchunks();
  const FwdPassStateArgs args{
      .x = ConstTensorView::of(in.x.data(), {1, seqlen, s.nheads, s.headdim}),
      .B = ConstTensorView::of(in.B.data(), {1, seqlen, 1, s.dstate}),
      .dt = ConstTensorView::of(in.dt.data(), {s.nheads, nchunks, kBenchChunk}),
      .dA_cumsum = ConstTensorView::of(in.dA_cumsum.data(), {s.nheads, nchunks, 2, kBenchChunk}),
      .initial_states = {},
      .plan = in.plan,
      .states = TensorView::of(in.states.data(),
                               {nchunks, s.nheads, s.dstate, padded_headdim(s.headdim)}),
      .final_states = {}};
  std::vector<std::byte> workspace(cpu::fwd_pass_state_workspace_bytes(args, pool.nthreads()));
  cpu::fwd_pass_state(args, workspace, pool);

  // The first head's state after the first chunk.
  std::vector<double> truth(static_cast<std::size_t>(s.headdim * s.dstate));
  ref::fwd_pass_state_chunk<double>(in.first_sums(),
                                    {in.dt.begin(), in.dt.begin() + in.chunks[0].length},
                                    in.first_rows(in.x, s.nheads * s.headdim, s.headdim),
                                    in.first_rows(in.B, s.dstate, s.dstate), truth);
  Measurement out;
  out.shape = describe(s, seqlen);
  out.allowed_error = 1e-5;
  double sum_of_squares = 0;
  const std::int64_t columns = padded_headdim(s.headdim);
  const float* got = in.states.data() + s.nheads * s.dstate * columns;
  for (std::int64_t p = 0; p < s.headdim; ++p) {
    for (std::int64_t n = 0; n < s.dstate; ++n) {
      const double expected = truth[static_cast<std::size_t>(p * s.dstate + n)];
      out.error =
          std::max(out.error, std::abs(static_cast<double>(got[n * columns + p]) - expected));
      sum_of_squares += expected * expected;
    }
  }
  out.error /= std::sqrt(sum_of_squares / static_cast<double>(truth.size()));
  require_accuracy("fwd_pass_state", out.shape, out.error, out.allowed_error);

  out.flops = 2.0 * static_cast<double>(in.x.size()) * static_cast<double>(s.dstate);
  out.bytes =
      4.0 * static_cast<double>(in.x.size() + in.B.size() + 3 * in.dt.size() + in.states.size());
  out.timing = time_calls([&] { cpu::fwd_pass_state(args, workspace, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark fwd_pass_state_benchmark() {
  return {.name = "fwd_pass_state",
          .description = "states of the state-space dual between chunks",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (const ChunkShape& shape : kChunkShapes) {
              out.push_back(measure(shape, 512, pool, min_seconds));
            }
            return out;
          }};
}

}  // namespace adder::bench
