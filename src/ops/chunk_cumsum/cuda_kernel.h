#pragma once

// What cuda.cc hands to the kernels of cuda.cu and cuda_plan.cu. Needs no CUDA header.

#include <cstdint>

#include "ops/chunk_cumsum/cuda_launch.h"
#include "ops/chunk_cumsum/device_plan.h"

namespace adder::cuda {

struct PlanMemory {
  Chunk* chunks;
  std::int64_t* first_chunk;  ///< (nsequences + 1)
  std::int32_t* bounds;       ///< (nsequences + 1): where sequences begin, and the last ends
  std::int32_t* segments;     ///< (nchunks, chunk_size)
  std::int32_t* last_index;   ///< (nchunks): the last of seq_idx in a chunk that is not padding
};

struct PlanParams {
  PlanMemory memory;
  std::int64_t nchunks, nsequences;
  std::int64_t batch, seqlen, chunk_size, chunks_per_row;
  const std::int32_t* cu_seqlens;         ///< or null
  const std::int32_t* seq_idx;            ///< or null
  std::int64_t row_stride, token_stride;  ///< of seq_idx
};

void launch_plan(const PlanParams& params, Stream stream);

struct CumsumParams {
  DevicePlan plan;
  ChunkWindow window;
  const void* dt_raw;
  std::int64_t row_stride, token_stride, head_stride;
  const float* A;
  const float* dt_bias;  ///< or null
  DtOptions options;
  std::int64_t nheads;
  float* dt;
  float* dA_cumsum;
};

/// T is the dtype of dt_raw.
template <typename T>
void launch_cumsum(const CumsumParams& params, Stream stream);

}  // namespace adder::cuda
