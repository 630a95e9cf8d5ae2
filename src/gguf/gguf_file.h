#pragma once

// The GGUF container, versions 2 and 3, little-endian: "GGUF", a version, the number of tensors and
// of metadata values, the values (key, type, value), the tensors (name, extents, element type,
// offset) and, from the next multiple of the alignment on, their data.
// Source: the format's description in the documentation of ggml.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adder/dtype.h"
#include "gguf/block_format.h"

namespace adder {

/// The types of metadata values, as the format numbers them.
enum class GgufType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  array,
  u64,
  i64,
  f64
};

struct GgufTensor {
  std::string_view name;
  /// Row-major: the format's list of extents reversed.
  std::vector<std::int64_t> shape;
  /// How the elements are stored: blocks, whose values are f32, or plain elements of `dtype`.
  std::optional<BlockFormat> blocks;
  DType dtype = DType::f32;
  std::span<const std::byte> data;
};

/// What a GGUF file says. The object refers to the file's bytes, which must outlive it.
///
/// Getters return nothing for a key that is not there, and throw adder::Error, naming file and key,
/// for a value of another type.
class GgufFile {
 public:
  /// `source` names the bytes in errors. Throws adder::Error unless all counts, strings, arrays,
  /// extents and offsets lie inside the bytes, no two tensors overlap, and names and keys are
  /// unique. No element of a tensor is looked at.
  GgufFile(std::span<const std::byte> bytes, std::string source);

  const std::string& source() const { return source_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// A file with the same metadata and no tensors: what says how to cut text into tokens.
  std::vector<std::byte> without_tensors() const;

  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  /// An integer of any width and sign, from `least` to `most`.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least,
                                      std::int64_t most) const;
  /// A floating-point number of either width.
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  std::optional<std::vector<std::int32_t>> integers(std::string_view key) const;
  std::optional<std::vector<float>> numbers(std::string_view key) const;
  /// The number of elements of an array of any type.
  std::optional<std::uint64_t> array_size(std::string_view key) const;

 private:
  struct Value {
    GgufType type;
    GgufType element_type;            // of an array
    std::uint64_t count = 1;          // of an array
    std::span<const std::byte> data;  // without the type, and of an array without the count
  };
  class Reader;

  const Value* find(std::string_view key) const;
  const Value* find_array(std::string_view key, GgufType element_type) const;
  void read_values(Reader& reader, std::uint64_t count);
  void read_tensors(Reader& reader, std::uint64_t count);
  void read_data(std::span<const std::byte> bytes, std::uint64_t begin);

  std::string source_;
  std::span<const std::byte> head_;  // up to the end of the metadata
  std::uint64_t alignment_ = 32;
  std::map<std::string_view, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint64_t> offsets_;  // of the tensors' data, from the beginning of all data
};

/// Whether the file begins as the format does. False for what cannot be read.
bool is_gguf_file(const std::filesystem::path& path);

/// The one file of this extension in a folder, or nothing if there is none. Throws adder::Error
/// when there are several.
std::optional<std::filesystem::path> gguf_file_in(const std::filesystem::path& folder);

}  // namespace adder
