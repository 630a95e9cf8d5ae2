#pragma once

// The operations on chunks over a part of the plan, for callers that keep no more than that part of
// dt, prefix sums and states in memory. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::cuda {

/// Chunks [first, first + count) of the plan. Arrays over chunks (dt, dA_cumsum, states) hold these
/// alone: their extent of chunks is `count`.
struct ChunkWindow {
  std::int64_t first;
  std::int64_t count;
};

/// `args` are those of chunk_cumsum, but for the extent of chunks; nothing is checked.
void launch_chunk_cumsum(const ChunkCumsumArgs& args, const ChunkWindow& window, Stream stream);

}  // namespace adder::cuda
