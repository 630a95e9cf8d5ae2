#pragma once

// A chunk plan as kernels see it. Needs no CUDA header; device_plan.cuh reads it.

#include <cstdint>

#include "ops/chunk_cumsum/chunk_plan.h"

namespace adder::cuda {

struct DevicePlan {
  const Chunk* chunks;
  const std::int32_t* segments;  ///< or null
  std::int64_t nchunks;
  std::int64_t chunk_size;
  std::int64_t nsequences;
  std::int64_t batch;
  std::int64_t seqlen;
};

inline DevicePlan device_plan(const ChunkPlan& plan, std::int64_t batch, std::int64_t seqlen) {
  return {plan.chunks.data(),
          plan.segments.empty() ? nullptr : plan.segments.data(),
          plan.nchunks(),
          plan.chunk_size,
          plan.nsequences(),
          batch,
          seqlen};
}

}  // namespace adder::cuda
