#pragma once

// The stream type of the CUDA driver and runtime, without their headers.

struct CUstream_st;

namespace adder::cuda {

/// What cudaStreamCreate gives; null is the legacy default stream. Operations that take a stream
/// put their work on it and return: device tensors must stay alive and unchanged until it is done.
using Stream = ::CUstream_st*;

}  // namespace adder::cuda
