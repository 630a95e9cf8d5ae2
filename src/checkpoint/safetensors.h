#pragma once

// The safetensors format: an 8-byte little-endian header length, a JSON header
//
//   {"__metadata__": {string: string}, NAME: {"dtype": "F32", "shape": [..],
//                                             "data_offsets": [begin, end]}, ...}
//
// and the data, which the tensors' byte ranges cover exactly: no overlap, no hole, no rest.
// Source: the format's description in the safetensors repository's README.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_table.h"
#include "core/atomic_file.h"
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

/// What a file says of a tensor.
struct TensorHeader {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;

  std::int64_t bytes() const { return ConstTensorView(nullptr, dtype, shape).size_bytes(); }
};

/// Writes a safetensors file as its tensors come, which need not be in memory together. Readers see
/// the old file or, after `commit`, the whole new one; without it nothing is left behind.
class SafetensorsStream {
 public:
  /// Throws adder::Error on a repeated or reserved name, or a failure of the system.
  SafetensorsStream(const std::filesystem::path& path, std::vector<TensorHeader> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// In the order of the file: tensors whose bytes are a multiple of 64 come first, the others by
  /// decreasing element size, those of one kind by name, and the header is padded, so that every
  /// tensor in the mapped file is aligned to its element size and the former to 64 bytes.
  const std::vector<TensorHeader>& tensors() const { return tensors_; }
  /// The next bytes of the tensors in that order, as many at a time as suits.
  void write(std::span<const std::byte> bytes);
  /// After the last byte, once.
  void commit();

 private:
  std::vector<TensorHeader> tensors_;
  std::int64_t bytes_left_ = 0;
  AtomicFile file_;
};

struct NamedTensor {
  std::string name;
  ConstTensorView view;  // contiguous, in host memory
};

/// Writes a safetensors file of these tensors through a SafetensorsStream. Throws adder::Error for
/// a view that is not contiguous, too.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace adder
