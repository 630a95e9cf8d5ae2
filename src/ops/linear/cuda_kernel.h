#pragma once

// The kernels of linear on a CUDA device as cuda.cc calls them; needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"
#include "adder/dtype.h"

namespace adder::cuda::linear_kernels {

/// x is of type X, the weight of W, y of Y. Strides are between rows, in elements.
template <typename X, typename W, typename Y>
struct Params {
  const X* x;
  const W* weight;
  const float* bias;  ///< or null
  Y* y;
  std::int64_t x_stride, weight_stride, y_stride;
  std::int64_t ntokens, in, out;
  bool accumulate;  ///< y is added to; of float alone
};

/// For up to kFewTokens tokens. `vectorized`: rows of x and of the weight start at multiples of 16
/// bytes and are whole vectors of 16 bytes of the weight.
template <typename X, typename W, typename Y>
void launch_few_tokens(const Params<X, W, Y>& params, bool vectorized, Stream stream);

/// Rows of `in` elements, `stride` apart.
template <typename T>
struct Matrix {
  T* data;
  std::int64_t rows, in, stride;
};

/// parts[0] + parts[1] + parts[2] = x, exactly unless the last of them falls below 2^-133; each
/// part is x less those before it, rounded.
void launch_split(const Matrix<const float>& x, bf16* const (&parts)[3], std::int64_t stride,
                  Stream stream);

/// to = from, exactly.
void launch_widen(const Matrix<const f16>& from, float* to, std::int64_t stride, Stream stream);

/// Every row of y becomes the bias, or, with `accumulate`, has the bias added to it.
void launch_bias(const Matrix<float>& y, const float* bias, bool accumulate, Stream stream);

/// to = from, rounded.
template <typename Y>
void launch_round(const Matrix<const float>& from, const Matrix<Y>& to, Stream stream);

}  // namespace adder::cuda::linear_kernels
