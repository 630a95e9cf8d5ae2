#pragma once

// Writes small GGUF files for tests, well-formed or broken at will: it checks nothing.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace adder::test {

/// The format's numbers of metadata types.
enum GgufTypeNumber : std::uint32_t {
  kGgufU8 = 0,
  kGgufU16 = 2,
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufText = 8,
  kGgufArray = 9,
  kGgufU64 = 10,
  kGgufF64 = 12
};

/// And of element types of tensors.
enum GgmlTypeNumber : std::uint32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ8_0 = 8,
  kGgmlQ4_K = 12,
  kGgmlBf16 = 30
};

/// A value's bytes, one after the other.
template <typename T>
std::string raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
template <typename T>
std::string raw_array(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

struct GgufBuilder {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> extents;  // the innermost first, as the format has them
    std::uint32_t type = kGgmlF32;
    std::string data;
    std::optional<std::uint64_t> offset = {};  // instead of the right one
  };

  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::optional<std::uint64_t> tensor_count, value_count;   // instead of the right ones
  std::vector<std::pair<std::string, std::string>> values;  // key, and type with bytes
  std::vector<Tensor> tensors;

  /// Adds or replaces.
  void set(const std::string& key, std::uint32_t type, const std::string& bytes);
  void set_u32(const std::string& key, std::uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_bool(const std::string& key, bool value);
  void set_text(const std::string& key, std::string_view value);
  void set_texts(const std::string& key, std::span<const std::string> texts);
  void set_i32s(const std::string& key, std::span<const std::int32_t> integers);
  void erase(const std::string& key);
  void add_f32(const std::string& name, std::vector<std::uint64_t> extents,
               std::span<const float> elements);
  Tensor& tensor(const std::string& name);

  std::string build() const;
};

/// A length and the text.
std::string gguf_text(std::string_view text);

/// Rows of Q8_0 blocks of these values, of which there is a multiple of 32: each d is the largest
/// magnitude over 127.
std::string q8_0_blocks(std::span<const float> values);

}  // namespace adder::test
