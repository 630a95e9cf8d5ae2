#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

/// One head of one chunk.
struct ChunkCumsumTile {
  const float* dt_raw;  ///< of the first token
  std::int64_t dt_raw_stride;
  std::int64_t length;  ///< tokens
  std::int64_t width;   ///< of the rows below, at least `length`
  float A;
  float dt_bias;
  bool softplus;
  float dt_min;
  float dt_max;
  float* dt;    ///< (width)
  float* high;  ///< (width): the prefix sum, scaled by log2(e)
  float* low;   ///< (width): what `high` rounded off
};

struct ChunkCumsumKernels {
  void (*tile)(const ChunkCumsumTile& tile);
  /// clamp(softplus(raw + bias)) of `n` adjacent values; `raw` may be `dt`.
  void (*time_steps)(const float* raw, const float* bias, bool softplus, float dt_min, float dt_max,
                     float* dt, std::int64_t n);
};

ADDER_TIERED_KERNELS(ChunkCumsumKernels, chunk_cumsum_kernels)

}  // namespace adder::cpu
