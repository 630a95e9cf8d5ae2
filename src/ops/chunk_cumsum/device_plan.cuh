#pragma once

// How kernels read a chunk plan.

#include <cstdint>

#include "ops/chunk_cumsum/device_plan.h"

namespace adder::cuda {

/// Chunk `c`. One that is not there or does not lie inside the batch is not used: its length is 0
/// and it lies past the last row.
__device__ __forceinline__ Chunk load_chunk(const DevicePlan& plan, std::int64_t c) {
  Chunk chunk{plan.batch, 0, 0, -1, false};
  if (c >= 0 && c < plan.nchunks) {
    const Chunk& stored = plan.chunks[c];
    const bool inside = stored.row >= 0 && stored.row < plan.batch && stored.begin >= 0 &&
                        stored.length >= 1 && stored.length <= plan.chunk_size &&
                        stored.begin <= plan.seqlen - stored.length && stored.sequence >= 0 &&
                        stored.sequence < plan.nsequences;
    if (inside) chunk = stored;
  }
  return chunk;
}

/// The number of the segment of a token, padding or not.
__device__ __forceinline__ std::int32_t segment_number(std::int32_t segment) {
  return segment < 0 ? ~segment : segment;
}

}  // namespace adder::cuda
