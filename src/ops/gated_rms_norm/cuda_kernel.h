#pragma once

// What cuda.cc, which checks, and cuda.cu, which computes, tell each other.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda::gated_norm {

/// Pointers into device memory; strides count elements. `out` may be `y` or `z`.
template <typename T>
struct Params {
  const T* y;
  std::int64_t y_stride;
  const T* z;  ///< may be null
  std::int64_t z_stride;
  const float* weight;  ///< may be null
  T* out;
  std::int64_t out_stride;
  std::int64_t ntokens;
  std::int64_t ngroups;
  std::int64_t size;  ///< of a group
  float epsilon;
  bool norm_before_gate;
  bool norm;
};

/// `vectorized`: every group of every tensor starts at a multiple of 16 bytes and is a multiple of
/// that long.
template <typename T>
void launch(const Params<T>& params, bool vectorized, Stream stream);

}  // namespace adder::cuda::gated_norm
