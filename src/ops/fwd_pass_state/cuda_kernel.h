#pragma once

// What cuda.cc hands to the kernels of cuda.cu. Needs no CUDA header.

#include <cstdint>

#include "ops/chunk_cumsum/device_plan.h"
#include "ops/fwd_pass_state/cuda_launch.h"

namespace adder::cuda {

struct TokenStrides {
  std::int64_t row, token, column;  ///< of the batch; column: head or group
};

struct StateStrides {
  std::int64_t sequence, head, p;  ///< n is contiguous
};

struct WalkParams {
  DevicePlan plan;
  ChunkWindow window;
  const void* x;
  TokenStrides x_strides;
  bool x_aligned;
  const void* B;
  TokenStrides B_strides;
  bool B_aligned;
  const float* dt;
  const float* dA_cumsum;
  const float* initial_states;  ///< or null
  StateStrides initial_strides;
  float* final_states;  ///< or null
  StateStrides final_strides;
  const float*
      carry_in;         ///< (nheads, dstate, columns): of the sequence that crosses into the window
  float* carry_out;     ///< of that which crosses out
  float* states;        ///< (window, nheads, dstate, columns)
  bool states_aligned;  ///< to 8 bytes
  int nheads, heads_per_group;
  int headdim, columns, dstate;
  int n_tiles, p_tiles;  ///< set by launch_walk
};

/// Tiles of the state that a block works on: the large one moves the fewest bytes, the small one
/// gives four times the blocks.
inline constexpr int kLargeStateTile = 64;
inline constexpr int kSmallStateTile = 32;

/// A is an arithmetic (see cuda/arithmetic.h).
template <typename A>
void launch_walk(WalkParams params, bool large_tiles, Stream stream);

/// Sequences without chunks end with their initial states.
void launch_unchanged(const WalkParams& params, const std::int64_t* first_chunk, Stream stream);

}  // namespace adder::cuda
