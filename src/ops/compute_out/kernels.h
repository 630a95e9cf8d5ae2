#pragma once

#include <cstdint>

#include "adder/dtype.h"
#include "core/cpu_tier.h"

namespace adder::cpu {

/// C·Bᵀ of one group of one chunk.
struct ScoreTile {
  std::int64_t length;  ///< tokens
  std::int64_t dstate;
  std::int64_t stride;  ///< padded length
  const float* C;       ///< (length, C_stride)
  std::int64_t C_stride;
  const float* B;  ///< (dstate, stride): transposed, tokens adjacent
  float* scores;   ///< (length, stride); only what lies on and below the diagonal is meaningful
};

/// One head of one chunk.
struct OutTile {
  std::int64_t length;
  std::int64_t dstate;
  std::int64_t headdim;
  std::int64_t columns;  ///< padded headdim
  std::int64_t stride;   ///< padded length
  const float* scores;   ///< (length, stride), see ScoreTile
  const float* dt;       ///< (length)
  const float* high;     ///< (length): prefix sum, see chunk_cumsum
  const float* low;
  const float* C;  ///< (length, C_stride)
  std::int64_t C_stride;
  const float* x;      ///< (length, columns)
  const float* state;  ///< (dstate, columns) before the chunk; null means zero
  const float* D;      ///< one value, or headdim values; null means none
  bool D_has_headdim;
  const void* z;  ///< rows of headdim values of `dtype`; null means none
  std::int64_t z_stride;
  void* y;
  std::int64_t y_stride;
  DType dtype;
  const void* next_x;  ///< rows of x that will be read next, to be prefetched; null means unknown
  std::int64_t next_x_stride;
  float* weights;  ///< scratch (length, stride)
  float* decays;   ///< scratch (stride)
};

struct ComputeOutKernels {
  void (*scores)(const ScoreTile& tile);
  void (*out)(const OutTile& tile);
};

ADDER_TIERED_KERNELS(ComputeOutKernels, compute_out_kernels)

}  // namespace adder::cpu
