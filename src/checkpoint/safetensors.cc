#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/safetensors_dtypes.h"
#include "core/check.h"
#include "core/json_document.h"
#include "core/quote.h"

namespace adder {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::uint64_t little_endian_u64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

/// The member `key` of a tensor's header entry.
const json& member(const json& object, const char* key, std::string_view tensor,
                   std::string_view source) {
  const auto found = object.find(key);
  check(found != object.end(), "{}: tensor {} has no {} in the header", source, in_quotes(tensor),
        key);
  return *found;
}

/// `value` as an array of integers in [0, 2^63).
std::vector<std::int64_t> integers(const json& value, const char* key, std::string_view tensor,
                                   std::string_view source) {
  check(value.is_array(), "{}: {} of tensor {} is a JSON {}, expected an array", source, key,
        in_quotes(tensor), value.type_name());
  std::vector<std::int64_t> out;
  out.reserve(value.size());
  for (const json& item : value) {
    const bool representable =
        item.is_number_unsigned() &&
        item.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    check(representable, "{}: {} of tensor {} has the element {}, expected an integer in [0, 2^63)",
          source, key, in_quotes(tensor), in_quotes(item.dump(-1, ' ', true)));
    out.push_back(item.get<std::int64_t>());
  }
  return out;
}

DType parse_dtype(const json& value, std::string_view tensor, std::string_view source) {
  check(value.is_string(), "{}: dtype of tensor {} is a JSON {}, expected a string", source,
        in_quotes(tensor), value.type_name());
  const auto& text = value.get_ref<const std::string&>();
  for (const auto& [name, dtype] : kSafetensorsDTypes) {
    if (name == text) return dtype;
  }
  fail("{}: tensor {} has dtype {}, expected F64, F32, F16, BF16 or an integer type", source,
       in_quotes(tensor), in_quotes(text));
}

/// Bytes of the dense tensor, or nothing if strides or bytes would not fit into 63 bits.
std::optional<std::uint64_t> dense_bytes(const Entry& entry) {
  std::uint64_t total = size_of(entry.dtype);
  bool empty = false;
  for (std::int64_t extent : entry.shape) {
    empty = empty || extent == 0;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1));
    if (total > std::uint64_t{std::numeric_limits<std::int64_t>::max()} / factor) return {};
    total *= factor;
  }
  return empty ? 0 : total;
}

Entry parse_entry(const std::string& name, const json& value, std::uint64_t data_bytes,
                  std::string_view source) {
  check(value.is_object(), "{}: the header entry of tensor {} is a JSON {}, expected an object",
        source, in_quotes(name), value.type_name());
  Entry entry;
  entry.name = name;
  entry.dtype = parse_dtype(member(value, "dtype", name, source), name, source);
  entry.shape = integers(member(value, "shape", name, source), "shape", name, source);
  check(entry.shape.size() <= std::size_t{kMaxRank},
        "{}: tensor {} has {} dimensions, expected at most {}", source, in_quotes(name),
        entry.shape.size(), kMaxRank);
  const auto offsets =
      integers(member(value, "data_offsets", name, source), "data_offsets", name, source);
  check(offsets.size() == 2, "{}: data_offsets of tensor {} has {} elements, expected 2", source,
        in_quotes(name), offsets.size());
  entry.begin = static_cast<std::uint64_t>(offsets[0]);
  entry.end = static_cast<std::uint64_t>(offsets[1]);
  check(entry.begin <= entry.end && entry.end <= data_bytes,
        "{}: data_offsets of tensor {} are [{}, {}], expected a range inside the {} bytes of data",
        source, in_quotes(name), entry.begin, entry.end, data_bytes);
  const auto expected = dense_bytes(entry);
  check(expected == entry.end - entry.begin,
        "{}: tensor {} of shape {} and dtype {} has {} bytes of data, expected {}", source,
        in_quotes(name), shape_string(entry.shape), name_of(entry.dtype), entry.end - entry.begin,
        expected ? std::to_string(*expected) : "more than a file can hold");
  return entry;
}

void check_metadata(const json& metadata, std::string_view source) {
  check(metadata.is_object(), "{}: __metadata__ is a JSON {}, expected an object", source,
        metadata.type_name());
  for (const auto& [key, value] : metadata.items()) {
    check(value.is_string(), "{}: {} in __metadata__ is a JSON {}, expected a string", source,
          in_quotes(key), value.type_name());
  }
}

/// The sorted ranges meet end to begin and fill the data.
void check_coverage(std::vector<Entry>& entries, std::uint64_t data_bytes,
                    std::string_view source) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    check(entry.begin == covered, "{}: data of tensor {} starts at byte {}, expected {} ({})",
          source, in_quotes(entry.name), entry.begin, covered,
          entry.begin < covered ? "it overlaps another tensor" : "nothing describes the gap");
    covered = entry.end;
  }
  check(covered == data_bytes, "{}: tensors end at byte {} of the data, expected its end, {}",
        source, covered, data_bytes);
}

}  // namespace

TensorTable read_safetensors(std::span<const std::byte> bytes, std::string_view source) {
  check(bytes.size() >= kLengthBytes,
        "{} has {} bytes, expected a safetensors file, which has 8 at least", source, bytes.size());
  const std::uint64_t header_bytes = little_endian_u64(bytes);
  check(header_bytes <= kMaxHeaderBytes,
        "{}: the safetensors header length is {}, expected at most {}", source, header_bytes,
        kMaxHeaderBytes);
  check(header_bytes <= bytes.size() - kLengthBytes,
        "{}: the safetensors header length is {}, but only {} bytes follow it", source,
        header_bytes, bytes.size() - kLengthBytes);
  const auto header = bytes.subspan(kLengthBytes, header_bytes);
  const auto data = bytes.subspan(kLengthBytes + header_bytes);
  check(!header.empty() && header[0] == std::byte{'{'},
        "{}: the safetensors header does not start with an opening brace", source);
  const json document =
      parse_json_object({reinterpret_cast<const char*>(header.data()), header.size()}, source);

  std::vector<Entry> entries;
  entries.reserve(document.size());
  for (const auto& [name, value] : document.items()) {
    if (name == kMetadata) {
      check_metadata(value, source);
    } else {
      entries.push_back(parse_entry(name, value, data.size(), source));
    }
  }
  check_coverage(entries, data.size(), source);
  TensorTable table;
  for (const Entry& entry : entries) {
    table.emplace(entry.name, ConstTensorView(data.data() + entry.begin, entry.dtype, entry.shape));
  }
  return table;
}

ConstTensorView SafetensorsFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), "{} has no tensor {}", file_.path().string(), in_quotes(name));
  return found->second;
}

}  // namespace adder
