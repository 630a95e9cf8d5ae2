#include <cmath>

#include "core/check.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/kernels.h"

namespace adder::cpu {

void check_decay(std::string_view op, const ConstTensorView& A) {
  for (std::int64_t h = 0; h < A.dim(0); ++h) {
    const float a = A.as<float>()[h];
    check(std::isfinite(a) && a <= 0, "{}: A is {} for head {}, expected a finite negative number",
          op, a, h);
  }
}

void chunk_cumsum(const ChunkCumsumArgs& args, ThreadPool& pool) {
  check_host("chunk_cumsum", "dt_raw", args.dt_raw);
  validate(args);
  check_decay("chunk_cumsum", args.A);
  const ChunkCumsumKernels& kernels = chunk_cumsum_kernels();
  const std::int64_t nchunks = args.plan.nchunks();
  const std::int64_t width = args.plan.chunk_size;
  const std::int64_t grain = 1 + 512 / width;
  pool.parallel_for(args.A.dim(0) * nchunks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t head = i / nchunks;
      const Chunk& chunk = args.plan.chunks[static_cast<std::size_t>(i % nchunks)];
      float* sums = args.dA_cumsum.as<float>() + i * 2 * width;
      kernels.tile({.dt_raw = args.dt_raw.as<float>() + chunk.row * args.dt_raw.stride(0) +
                              chunk.begin * args.dt_raw.stride(1) + head * args.dt_raw.stride(2),
                    .dt_raw_stride = args.dt_raw.stride(1),
                    .length = chunk.length,
                    .width = width,
                    .A = args.A.as<float>()[head],
                    .dt_bias = args.dt_bias.defined() ? args.dt_bias.as<float>()[head] : 0.0F,
                    .softplus = args.dt_options.softplus,
                    .dt_min = args.dt_options.min,
                    .dt_max = args.dt_options.max,
                    .dt = args.dt.as<float>() + i * width,
                    .high = sums,
                    .low = sums + width});
    }
  });
}

}  // namespace adder::cpu
