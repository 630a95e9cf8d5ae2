#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/ref.h"

namespace adder::bench {
namespace {

Measurement measure(std::int64_t nheads, std::int64_t seqlen, ThreadPool& pool,
                    double min_seconds) {
  constexpr std::int64_t kChunk = 64;
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(-2);
  std::vector<float> raw(static_cast<std::size_t>(seqlen * nheads));
  for (float& v : raw) v = normal(engine);
  const std::vector<float> A(static_cast<std::size_t>(nheads), -0.5F);
  const ChunkPlanArgs plan_args{.batch = 1, .seqlen = seqlen, .chunk_size = kChunk};
  const ChunkPlanSize size = chunk_plan_size(plan_args);
  std::vector<Chunk> chunks(static_cast<std::size_t>(size.nchunks));
  std::vector<std::int64_t> first_chunk(2);
  std::vector<float> dt(static_cast<std::size_t>(nheads * size.nchunks * kChunk));
  std::vector<float> sums(2 * dt.size());
  ChunkCumsumArgs args;
  args.dt_raw = ConstTensorView::of(raw.data(), {1, seqlen, nheads});
  args.A = ConstTensorView::of(A.data(), {nheads});
  args.dt_options.softplus = true;
  args.plan = make_chunk_plan(plan_args, chunks.data(), first_chunk.data());
  args.dt = TensorView::of(dt.data(), {nheads, size.nchunks, kChunk});
  args.dA_cumsum = TensorView::of(sums.data(), {nheads, size.nchunks, 2, kChunk});
  cpu::chunk_cumsum(args, pool);

  Measurement out;
  out.shape = fmt::format("seqlen {}, {} heads, chunks of {}", seqlen, nheads, kChunk);
  out.allowed_error = 1e-6;
  double sum_of_squares = 0;
  for (std::size_t t = 0; t < static_cast<std::size_t>(std::min(kChunk, seqlen)); ++t) {
    const double truth = ref::time_step<double>(
        static_cast<double>(raw[t * static_cast<std::size_t>(nheads)]), args.dt_options);
    out.error = std::max(out.error, std::abs(static_cast<double>(dt[t]) - truth));
    sum_of_squares += truth * truth / static_cast<double>(kChunk);
  }
  out.error /= std::sqrt(sum_of_squares);
  require_accuracy("chunk_cumsum", out.shape, out.error, out.allowed_error);

  out.bytes = 4 * static_cast<double>(raw.size() + dt.size() + sums.size());
  out.flops = 45 * static_cast<double>(raw.size());  // two polynomials and a division
  out.timing = time_calls([&] { cpu::chunk_cumsum(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark chunk_cumsum_benchmark() {
  return {.name = "chunk_cumsum",
          .description = "time steps of the state-space dual and their prefix sums",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (std::int64_t nheads : {12, 24, 80}) {
              out.push_back(measure(nheads, 512, pool, min_seconds));
            }
            return out;
          }};
}

}  // namespace adder::bench
