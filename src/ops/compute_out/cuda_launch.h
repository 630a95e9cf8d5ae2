#pragma once

// compute_out over a part of the plan. Needs no CUDA header.

#include "ops/chunk_cumsum/cuda_launch.h"
#include "ops/compute_out/compute_out.h"

namespace adder::cuda {

/// `args` are those of compute_out, but for the extent of chunks; nothing is checked. Tokens that
/// are in no chunk of the plan get zero from the window with the chunk after them, those at the end
/// from the last window, which may be empty only if the plan is.
void launch_compute_out(const ComputeOutArgs& args, const ChunkWindow& window, Stream stream);

}  // namespace adder::cuda
