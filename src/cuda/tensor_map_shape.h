#pragma once

// Tensors as the bulk tensor copy engine (Hopper and later) sees them; needs no CUDA header.

#include <array>
#include <cstdint>

#include "adder/dtype.h"

namespace adder::cuda {

/// A tensor of four dimensions, fastest first, of 16-bit elements; the first dimension has
/// stride 1.
struct TensorMapShape {
  const void* data;
  DType dtype;  ///< bf16 or f16
  std::array<std::int64_t, 4> extents;
  std::array<std::int64_t, 3> strides;  ///< of the dimensions after the first, in elements
  std::array<int, 4> box;               ///< what one copy moves; box[0] is 64 elements: 128 bytes
};

/// Whether the copy engine can address the tensor: 16-byte alignment of data and strides, extents
/// and strides within its limits.
bool can_map(const TensorMapShape& shape);

}  // namespace adder::cuda
