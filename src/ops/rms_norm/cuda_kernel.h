#pragma once

// What cuda.cc, which checks, and cuda.cu, which computes, tell each other.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda::rms {

/// Pointers into device memory; strides count elements. R is float, or T if there is no `x`.
template <typename R, typename T>
struct Params {
  R* residual;
  std::int64_t residual_stride;
  const T* x;  ///< may be null
  std::int64_t x_stride;
  const float* weight;  ///< may be null
  T* y;
  std::int64_t y_stride;
  std::int64_t ntokens;
  std::int64_t d_model;
  float epsilon;
};

/// `vectorized`: every row of every tensor starts at a multiple of 16 bytes, and d_model elements
/// of T are a multiple of that long.
template <typename R, typename T>
void launch(const Params<R, T>& params, bool vectorized, Stream stream);

}  // namespace adder::cuda::rms
