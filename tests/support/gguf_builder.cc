#include "tests/support/gguf_builder.h"

#include <algorithm>
#include <cmath>

#include "core/half.h"

namespace adder::test {

std::string gguf_text(std::string_view text) {
  return raw<std::uint64_t>(text.size()) + std::string(text);
}

void GgufBuilder::set(const std::string& key, std::uint32_t type, const std::string& bytes) {
  erase(key);
  values.emplace_back(key, raw(type) + bytes);
}

void GgufBuilder::set_u32(const std::string& key, std::uint32_t value) {
  set(key, kGgufU32, raw(value));
}

void GgufBuilder::set_f32(const std::string& key, float value) { set(key, kGgufF32, raw(value)); }

void GgufBuilder::set_bool(const std::string& key, bool value) {
  set(key, kGgufBool, raw(static_cast<std::uint8_t>(value)));
}

void GgufBuilder::set_text(const std::string& key, std::string_view value) {
  set(key, kGgufText, gguf_text(value));
}

void GgufBuilder::set_texts(const std::string& key, std::span<const std::string> texts) {
  std::string bytes = raw<std::uint32_t>(kGgufText) + raw<std::uint64_t>(texts.size());
  for (const std::string& text : texts) bytes += gguf_text(text);
  set(key, kGgufArray, bytes);
}

void GgufBuilder::set_i32s(const std::string& key, std::span<const std::int32_t> integers) {
  set(key, kGgufArray,
      raw<std::uint32_t>(kGgufI32) + raw<std::uint64_t>(integers.size()) + raw_array(integers));
}

void GgufBuilder::erase(const std::string& key) {
  std::erase_if(values, [&](const auto& entry) { return entry.first == key; });
}

void GgufBuilder::add_f32(const std::string& name, std::vector<std::uint64_t> extents,
                          std::span<const float> elements) {
  tensors.push_back({.name = name, .extents = std::move(extents), .data = raw_array(elements)});
}

GgufBuilder::Tensor& GgufBuilder::tensor(const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const Tensor& tensor) { return tensor.name == name; });
}

std::string GgufBuilder::build() const {
  std::string header = "GGUF" + raw(version) +
                       raw<std::uint64_t>(tensor_count.value_or(tensors.size())) +
                       raw<std::uint64_t>(value_count.value_or(values.size()));
  for (const auto& [key, value] : values) header += gguf_text(key) + value;
  std::string data;
  for (const Tensor& tensor : tensors) {
    header += gguf_text(tensor.name) + raw(static_cast<std::uint32_t>(tensor.extents.size()));
    for (const std::uint64_t extent : tensor.extents) header += raw(extent);
    header += raw(tensor.type) + raw<std::uint64_t>(tensor.offset.value_or(data.size()));
    data += tensor.data;
    data.resize((data.size() + alignment - 1) / alignment * alignment);
  }
  if (!tensors.empty()) header.resize((header.size() + alignment - 1) / alignment * alignment);
  return header + data;
}

std::string q8_0_blocks(std::span<const float> values) {
  constexpr std::size_t kBlock = 32;
  std::string out;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const auto block = values.subspan(begin, kBlock);
    float largest = 0;
    for (const float v : block) largest = std::max(largest, std::abs(v));
    const float d = largest / 127.0F;
    out += raw(to_f16(d));
    for (const float v : block) {
      out += raw(static_cast<std::int8_t>(d > 0 ? std::lround(v / d) : 0));
    }
  }
  return out;
}

}  // namespace adder::test
