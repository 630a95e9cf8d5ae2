#pragma once

// Matrix products by cuBLASLt, which is loaded at the first of them: a program that never
// multiplies on a device runs without it. Needs no CUDA header.

#include <cstddef>
#include <cstdint>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/dtype.h"

namespace adder::cuda {

/// y = x · Wᵀ, or y += x · Wᵀ. Rows are contiguous; strides are between rows, in elements. Sums are
/// float32; products of f32 keep all digits (no TF32).
struct MatrixProduct {
  const void* x;       ///< (rows, in), of dtype `dtype`
  const void* weight;  ///< (out, in), likewise
  void* y;             ///< (rows, out), of dtype `y_dtype`
  std::int64_t rows, out, in;
  std::int64_t x_stride, weight_stride, y_stride;
  DType dtype;    ///< f32, bf16 or f16
  DType y_dtype;  ///< `dtype` or f32
  bool accumulate = false;
};

/// Workspace that lets cuBLASLt choose among all of its algorithms.
inline constexpr std::size_t kMatrixProductWorkspaceBytes = std::size_t{32} << 20;

/// Puts the product on the stream and returns; safe in a stream that is being captured. How it is
/// computed depends on extents, strides, dtypes and alignment alone. Throws adder::Error if
/// cuBLASLt cannot be loaded or refuses.
void multiply(const MatrixProduct& product, std::span<std::byte> workspace, Stream stream);

}  // namespace adder::cuda
