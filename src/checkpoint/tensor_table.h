#pragma once

#include <bit>
#include <functional>
#include <map>
#include <string>

#include "adder/tensor_view.h"

namespace adder {

// All formats are little-endian, and their bytes are used as they are.
static_assert(std::endian::native == std::endian::little);

/// The tensors of one weight file by their stored names. The views point into the file's bytes:
/// they may be strided, and at an address that is not a multiple of the element size, so elements
/// must be read by memcpy unless both have been checked (Checkpoint hands out such views only).
using TensorTable = std::map<std::string, ConstTensorView, std::less<>>;

}  // namespace adder
