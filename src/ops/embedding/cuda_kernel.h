#pragma once

// What cuda.cc, which checks, and cuda.cu, which computes, tell each other.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda::embed {

/// Pointers into device memory; strides count elements. W is the dtype of the weight, T that of y.
template <typename W, typename T>
struct Params {
  const std::int32_t* ids;
  const W* weight;
  std::int64_t weight_stride;
  std::int64_t vocab_rows;
  T* y;
  std::int64_t y_stride;
  std::int64_t ntokens;
  std::int64_t d_model;
};

/// Elements that a thread moves at once: 16 bytes of the wider of the two dtypes.
template <typename W, typename T>
inline constexpr int kEmbedVector = 16 /
                                    static_cast<int>(sizeof(W) > sizeof(T) ? sizeof(W) : sizeof(T));

/// `vectorized`: every row of weight and y starts at a multiple of 16 bytes, and d_model is a
/// multiple of kEmbedVector.
template <typename W, typename T>
void launch(const Params<W, T>& params, bool vectorized, Stream stream);

}  // namespace adder::cuda::embed
