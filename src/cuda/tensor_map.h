#pragma once

// Descriptions of tensors for the bulk tensor copy engine. For files that include CUDA headers
// anyway.

#include <cuda.h>

#include <string_view>

#include "cuda/tensor_map_shape.h"

namespace adder::cuda {

/// Throws adder::Error, naming `tensor`, if the driver refuses. Copies land in the 128-byte
/// swizzle; elements outside of the extents read as zero and are not written.
CUtensorMap make_tensor_map(std::string_view tensor, const TensorMapShape& shape);

}  // namespace adder::cuda
