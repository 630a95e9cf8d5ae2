#pragma once

// What cuda.cc, which checks, and cuda.cu, which computes, tell each other.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda::glu {

/// Pointers into device memory; strides count elements.
template <typename T>
struct Params {
  const T* x;
  std::int64_t x_stride;
  const T* gate;
  std::int64_t gate_stride;
  T* y;  ///< may be x or gate
  std::int64_t y_stride;
  std::int64_t ntokens;
  std::int64_t d_mlp;
};

/// `vectorized`: every row of every tensor starts at a multiple of 16 bytes and is a multiple of
/// that long.
template <typename T>
void launch(const Params<T>& params, bool vectorized, Stream stream);

}  // namespace adder::cuda::glu
