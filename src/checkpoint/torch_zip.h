#pragma once

// PyTorch's checkpoint format since 1.6: a zip archive of stored entries under one top folder,
//   FOLDER/data.pkl     the state dict, see unpickle.h
//   FOLDER/data/KEY     the bytes of storage KEY, little-endian
//   FOLDER/byteorder    "little" (newer versions)

#include <cstddef>
#include <span>
#include <string_view>

#include "checkpoint/tensor_table.h"

namespace adder {

/// Reads the state dict in `bytes` and returns views into them, strided where the tensors were.
/// `source` names the bytes in errors. Throws adder::Error for any other content, and unless every
/// tensor lies inside its storage and every storage has the bytes it claims.
TensorTable read_torch_zip(std::span<const std::byte> bytes, std::string_view source);

}  // namespace adder
