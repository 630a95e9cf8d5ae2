#pragma once

// What cuda.cc hands to the kernel of cuda.cu. Needs no CUDA header.

#include <cstdint>

#include "ops/chunk_cumsum/device_plan.h"
#include "ops/compute_out/cuda_launch.h"

namespace adder::cuda {

/// Tokens and columns of a tile.
inline constexpr int kOutTile = 64;

template <typename Void>
struct OutTensor {
  Void* data;                       ///< or null
  std::int64_t row, token, column;  ///< strides; column: head or group
  bool aligned;                     ///< rows begin at multiples of 16 bytes
};

struct OutParams {
  DevicePlan plan;
  ChunkWindow window;
  OutTensor<const void> x, B, C, z;
  OutTensor<void> y;
  const float* dt;
  const float* dA_cumsum;
  const float* states;
  bool states_aligned;  ///< to 16 bytes
  const float* D;       ///< or null
  bool D_has_headdim;
  int nheads, ngroups, headdim, columns, dstate;
  int dstate_slices, p_tiles;  ///< 64 columns each
  int items;                   ///< of a group: heads × p_tiles
  int items_per_block, blocks_per_group;
};

/// A is an arithmetic (see cuda/arithmetic.h); `slots` chunks of the window.
template <typename A>
void launch_out(const OutParams& params, std::int64_t slots, Stream stream);

}  // namespace adder::cuda
