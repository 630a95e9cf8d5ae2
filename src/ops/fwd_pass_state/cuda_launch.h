#pragma once

// fwd_pass_state over a part of the plan. Needs no CUDA header.

#include "ops/chunk_cumsum/cuda_launch.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"

namespace adder::cuda {

/// (nheads, dstate, padded headdim) states of the one sequence that may cross a window's beginning
/// (read) and of that which may cross its end (written). Absent if the window is the whole plan.
struct StateCarry {
  const float* in = nullptr;
  float* out = nullptr;
};

/// `args` are those of fwd_pass_state, but for the extent of chunks; nothing is checked. Sequences
/// without chunks are left out.
void launch_fwd_pass_state(const FwdPassStateArgs& args, const ChunkWindow& window,
                           const StateCarry& carry, Stream stream);

/// Gives each sequence without chunks its initial state as the final one.
void launch_empty_sequences(const FwdPassStateArgs& args, Stream stream);

}  // namespace adder::cuda
