#pragma once

// The safetensors format: an 8-byte little-endian header length, a JSON header
//
//   {"__metadata__": {string: string}, NAME: {"dtype": "F32", "shape": [..],
//                                             "data_offsets": [begin, end]}, ...}
//
// and the data, which the tensors' byte ranges cover exactly: no overlap, no hole, no rest.
// Source: the format's description in the safetensors repository's README.

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_table.h"
#include "core/mapped_file.h"

namespace adder {

/// Reads the header in `bytes` and returns views into them. `source` names the bytes in errors.
/// Throws adder::Error unless everything the format promises holds.
TensorTable read_safetensors(std::span<const std::byte> bytes, std::string_view source);

/// A mapped safetensors file and its tensors.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path)
      : file_(path), tensors_(read_safetensors(file_.bytes(), path.string())) {}

  const TensorTable& tensors() const { return tensors_; }
  /// The tensor of that name; throws adder::Error when there is none.
  ConstTensorView tensor(std::string_view name) const;

 private:
  MappedFile file_;
  TensorTable tensors_;
};

struct NamedTensor {
  std::string name;
  ConstTensorView view;  // contiguous, in host memory
};

/// Writes a safetensors file, atomically: readers see the old file or the whole new one. Tensors
/// whose bytes are a multiple of 64 come first, the others by decreasing element size, those of one
/// kind by name, and the header is padded, so that every tensor in the mapped file is aligned to
/// its element size and the former to 64 bytes. Throws adder::Error on a repeated or reserved name,
/// a view that is not contiguous, or a failure of the system.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace adder
