#include "gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr std::string_view kMagic = "GGUF";
constexpr int kMaxArrayDepth = 8;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr auto kMaxInt64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

constexpr std::string_view kTypeNames[] = {"u8",   "i8",   "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "text", "array", "u64", "i64", "f64"};

std::string_view name_of(GgufType type) { return kTypeNames[static_cast<std::size_t>(type)]; }

/// Bytes of a value of a type of fixed size; 0 for text and arrays.
std::uint64_t size_of(GgufType type) {
  constexpr std::uint64_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

template <typename T>
T value_at(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// Element types of tensors that are plain numbers, as the format numbers them.
constexpr std::pair<std::uint32_t, DType> kDTypes[] = {
    {0, DType::f32}, {1, DType::f16}, {30, DType::bf16}};

constexpr std::pair<std::uint32_t, BlockFormat> kBlockTypes[] = {
    {2, BlockFormat::q4_0},  {3, BlockFormat::q4_1}, {6, BlockFormat::q5_0},
    {7, BlockFormat::q5_1},  {8, BlockFormat::q8_0}, {12, BlockFormat::q4_k},
    {13, BlockFormat::q5_k}, {14, BlockFormat::q6_k}};

/// a · b, at most 2^63 - 1.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > kMaxInt64 / b) return {};
  return a * b;
}

}  // namespace

/// Reads one field after the other; a field that the bytes end within is an error.
class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& source)
      : bytes_(bytes), source_(source) {}

  std::size_t position() const { return position_; }
  /// Everything that was read from `begin` on.
  std::span<const std::byte> since(std::size_t begin) const {
    return bytes_.subspan(begin, position_ - begin);
  }

  /// `what` and `of` name the field in errors.
  std::span<const std::byte> take(std::uint64_t count, std::string_view what,
                                  std::string_view of = {}) {
    if (count > bytes_.size() - position_) {
      fail("{}: {} at byte {} takes {} bytes, but only {} are left", source_, described(what, of),
           position_, count, bytes_.size() - position_);
    }
    const auto out = bytes_.subspan(position_, count);
    position_ += count;
    return out;
  }

  template <typename T>
  T number(std::string_view what, std::string_view of = {}) {
    return value_at<T>(take(sizeof(T), what, of).data());
  }

  std::string_view text(std::string_view what, std::string_view of = {}) {
    const auto bytes = take(number<std::uint64_t>(what, of), what, of);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  GgufType type(std::string_view key) {
    const auto number_of_type = number<std::uint32_t>("the type of", key);
    check(number_of_type < std::size(kTypeNames),
          "{}: the value of {} has type {}, expected 0 to {}", source_, in_quotes(key),
          number_of_type, std::size(kTypeNames) - 1);
    return static_cast<GgufType>(number_of_type);
  }

  /// Passes over `count` values of a type.
  void skip(GgufType value_type, std::uint64_t count, std::string_view key, int depth) {
    if (value_type == GgufType::text) {
      for (std::uint64_t i = 0; i < count; ++i) text("a text of", key);
    } else if (value_type == GgufType::array) {
      check(depth < kMaxArrayDepth, "{}: arrays nest more than {} deep in the value of {}", source_,
            kMaxArrayDepth, in_quotes(key));
      for (std::uint64_t i = 0; i < count; ++i) {
        const GgufType element_type = type(key);
        skip(element_type, number<std::uint64_t>("an array of", key), key, depth + 1);
      }
    } else {
      const auto total = product(size_of(value_type), count);
      check(total.has_value(), "{}: the value of {} has {} elements, more than a file can hold",
            source_, in_quotes(key), count);
      take(*total, "the value of", key);
    }
  }

 private:
  static std::string described(std::string_view what, std::string_view of) {
    return of.empty() ? std::string(what) : fmt::format("{} {}", what, in_quotes(of));
  }

  std::span<const std::byte> bytes_;
  const std::string& source_;
  std::size_t position_ = 0;
};

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string source)
    : source_(std::move(source)) {
  Reader reader(bytes, source_);
  const auto magic = reader.take(kMagic.size(), "the beginning of a GGUF file");
  check(std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0,
        "{} does not begin with GGUF, expected a GGUF file", source_);
  const auto version = reader.number<std::uint32_t>("the version");
  check((version & 0xffffU) != 0,
        "{}: the version is {:#x}, as in a big-endian file, expected a "
        "little-endian one",
        source_, version);
  check(version == 2 || version == 3, "{}: the version is {}, expected 2 or 3", source_, version);
  const auto ntensors = reader.number<std::uint64_t>("the number of tensors");
  const auto nvalues = reader.number<std::uint64_t>("the number of metadata values");
  read_values(reader, nvalues);
  head_ = bytes.first(reader.position());
  constexpr std::string_view kAlignment = "general.alignment";
  if (const auto stated = integer(kAlignment, 1, std::int64_t{1} << 31)) {
    alignment_ = static_cast<std::uint64_t>(*stated);
    check(std::has_single_bit(alignment_), "{}: {} is {}, expected a power of two", source_,
          kAlignment, alignment_);
  }
  if (const auto parts = integer("split.count", 0, 65535); parts && *parts > 1) {
    fail("{} is one of {} parts of a model, expected a file that holds all of it", source_, *parts);
  }
  read_tensors(reader, ntensors);
  const std::uint64_t end = reader.position();
  read_data(bytes, (end + alignment_ - 1) / alignment_ * alignment_);
}

std::vector<std::byte> GgufFile::without_tensors() const {
  std::vector<std::byte> out(head_.begin(), head_.end());
  // The number of tensors comes after the four letters and the version.
  std::fill_n(out.begin() + 8, sizeof(std::uint64_t), std::byte{0});
  return out;
}

// Counts are not trusted: nothing is reserved by them, and every round takes bytes from the file.
void GgufFile::read_values(Reader& reader, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view key = reader.text("a metadata key");
    Value value{.type = reader.type(key), .element_type = GgufType::u8, .data = {}};
    GgufType type = value.type;
    if (type == GgufType::array) {
      type = value.element_type = reader.type(key);
      value.count = reader.number<std::uint64_t>("the length of", key);
    }
    const std::size_t begin = reader.position();
    reader.skip(type, value.count, key, 1);
    value.data = reader.since(begin);
    check(values_.emplace(key, value).second, "{}: the metadata key {} is there twice", source_,
          in_quotes(key));
  }
}

namespace {

/// Sets how the elements are stored.
void set_element_type(GgufTensor& tensor, std::uint32_t type, std::string_view source) {
  for (const auto& [number, dtype] : kDTypes) {
    if (number == type) {
      tensor.dtype = dtype;
      return;
    }
  }
  for (const auto& [number, format] : kBlockTypes) {
    if (number == type) {
      tensor.blocks = format;
      return;
    }
  }
  fail(
      "{}: tensor {} has elements of ggml's type {}, expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
      "Q5_1, Q8_0, Q4_K, Q5_K or Q6_K",
      source, in_quotes(tensor.name), type);
}

/// Bytes of the tensor's data, which fit into 63 bits as its elements do.
std::uint64_t data_bytes(const GgufTensor& tensor, std::string_view source) {
  const BlockSize block = tensor.blocks
                              ? block_size(*tensor.blocks)
                              : BlockSize{1, static_cast<std::int64_t>(size_of(tensor.dtype))};
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  check(row % block.values == 0,
        "{}: tensor {} of shape {} is stored as {}, expected rows of a multiple of {} values",
        source, in_quotes(tensor.name), shape_string(tensor.shape),
        tensor.blocks ? name_of(*tensor.blocks) : name_of(tensor.dtype), block.values);
  // Elements as floats must have a size, too.
  std::optional<std::uint64_t> total = sizeof(float);
  for (const std::int64_t extent : tensor.shape) {
    if (total) total = product(*total, static_cast<std::uint64_t>(extent));
  }
  check(total.has_value(), "{}: tensor {} of shape {} has more elements than a file can hold",
        source, in_quotes(tensor.name), shape_string(tensor.shape));
  return *total / sizeof(float) / static_cast<std::uint64_t>(block.values) *
         static_cast<std::uint64_t>(block.bytes);
}

}  // namespace

void GgufFile::read_tensors(Reader& reader, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor;
    tensor.name = reader.text("the name of a tensor");
    const auto rank = reader.number<std::uint32_t>("the number of dimensions of", tensor.name);
    check(rank <= kMaxDimensions, "{}: tensor {} has {} dimensions, expected at most {}", source_,
          in_quotes(tensor.name), rank, kMaxDimensions);
    tensor.shape.resize(rank);
    for (std::uint32_t d = rank; d-- > 0;) {
      const auto extent = reader.number<std::uint64_t>("an extent of", tensor.name);
      check(extent >= 1 && extent <= kMaxInt64,
            "{}: tensor {} has an extent of {}, expected 1 to 2^63 - 1", source_,
            in_quotes(tensor.name), extent);
      tensor.shape[d] = static_cast<std::int64_t>(extent);
    }
    set_element_type(tensor, reader.number<std::uint32_t>("the type of", tensor.name), source_);
    offsets_.push_back(reader.number<std::uint64_t>("the offset of", tensor.name));
    tensors_.push_back(std::move(tensor));
  }
}

void GgufFile::read_data(std::span<const std::byte> bytes, std::uint64_t begin) {
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto by_name = [&](std::size_t a, std::size_t b) {
    return tensors_[a].name < tensors_[b].name;
  };
  std::sort(order.begin(), order.end(), by_name);
  for (std::size_t i = 1; i < order.size(); ++i) {
    check(by_name(order[i - 1], order[i]), "{}: the tensor {} is there twice", source_,
          in_quotes(tensors_[order[i]].name));
  }
  // Behind the last tensor's header a file without data may end before the alignment.
  const auto data = bytes.subspan(std::min<std::uint64_t>(begin, bytes.size()));
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return offsets_[a] < offsets_[b]; });
  std::uint64_t used = 0;
  for (const std::size_t i : order) {
    GgufTensor& tensor = tensors_[i];
    const std::uint64_t offset = offsets_[i];
    check(offset % alignment_ == 0,
          "{}: data of tensor {} starts at byte {}, expected a multiple "
          "of {}",
          source_, in_quotes(tensor.name), offset, alignment_);
    check(offset >= used, "{}: data of tensor {} starts at byte {}, inside those of another tensor",
          source_, in_quotes(tensor.name), offset);
    const std::uint64_t size = data_bytes(tensor, source_);
    check(offset <= data.size() && size <= data.size() - offset,
          "{}: data of tensor {} takes {} bytes from byte {} on, but there are {} bytes of data",
          source_, in_quotes(tensor.name), size, offset, data.size());
    tensor.data = data.subspan(offset, size);
    used = offset + size;
  }
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const GgufFile::Value* GgufFile::find_array(std::string_view key, GgufType element_type) const {
  const Value* value = find(key);
  if (value == nullptr) return nullptr;
  check(value->type == GgufType::array, "{}: {} is of type {}, expected an array of {}", source_,
        key, name_of(value->type), name_of(element_type));
  check(value->element_type == element_type, "{}: {} is an array of {}, expected one of {}",
        source_, key, name_of(value->element_type), name_of(element_type));
  return value;
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key, std::int64_t least,
                                              std::int64_t most) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  const auto in_range = [&](auto number) {
    check(std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, most),
          "{}: {} is {}, expected an integer from {} to {}", source_, key, number, least, most);
    return static_cast<std::int64_t>(number);
  };
  const std::byte* data = value->data.data();
  switch (value->type) {
    case GgufType::u8:
      return in_range(int{value_at<std::uint8_t>(data)});
    case GgufType::i8:
      return in_range(int{value_at<std::int8_t>(data)});
    case GgufType::u16:
      return in_range(value_at<std::uint16_t>(data));
    case GgufType::i16:
      return in_range(value_at<std::int16_t>(data));
    case GgufType::u32:
      return in_range(value_at<std::uint32_t>(data));
    case GgufType::i32:
      return in_range(value_at<std::int32_t>(data));
    case GgufType::u64:
      return in_range(value_at<std::uint64_t>(data));
    case GgufType::i64:
      return in_range(value_at<std::int64_t>(data));
    default:
      fail("{}: {} is of type {}, expected an integer", source_, key, name_of(value->type));
  }
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (value->type == GgufType::f32) return value_at<float>(value->data.data());
  if (value->type == GgufType::f64) return value_at<double>(value->data.data());
  fail("{}: {} is of type {}, expected f32 or f64", source_, key, name_of(value->type));
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  check(value->type == GgufType::boolean, "{}: {} is of type {}, expected bool", source_, key,
        name_of(value->type));
  return value_at<std::uint8_t>(value->data.data()) != 0;
}

std::optional<std::string_view> GgufFile::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  check(value->type == GgufType::text, "{}: {} is of type {}, expected text", source_, key,
        name_of(value->type));
  return Reader(value->data, source_).text(key);
}

std::optional<std::vector<std::string_view>> GgufFile::texts(std::string_view key) const {
  const Value* value = find_array(key, GgufType::text);
  if (value == nullptr) return {};
  // Each takes its length's bytes at least, so this is no more than the file's size.
  std::vector<std::string_view> out;
  out.reserve(value->count);
  Reader reader(value->data, source_);
  for (std::uint64_t i = 0; i < value->count; ++i) out.push_back(reader.text(key));
  return out;
}

namespace {

template <typename T>
std::vector<T> elements(std::span<const std::byte> data) {
  std::vector<T> out(data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), data.data(), data.size());
  return out;
}

}  // namespace

std::optional<std::uint64_t> GgufFile::array_size(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  check(value->type == GgufType::array, "{}: {} is of type {}, expected an array", source_, key,
        name_of(value->type));
  return value->count;
}

std::optional<std::vector<std::int32_t>> GgufFile::integers(std::string_view key) const {
  const Value* value = find_array(key, GgufType::i32);
  if (value == nullptr) return {};
  return elements<std::int32_t>(value->data);
}

std::optional<std::vector<float>> GgufFile::numbers(std::string_view key) const {
  const Value* value = find_array(key, GgufType::f32);
  if (value == nullptr) return {};
  return elements<float>(value->data);
}

bool is_gguf_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  char magic[kMagic.size()] = {};
  file.read(magic, sizeof(magic));
  return file.gcount() == sizeof(magic) && std::string_view(magic, sizeof(magic)) == kMagic;
}

std::optional<std::filesystem::path> gguf_file_in(const std::filesystem::path& folder) {
  std::optional<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".gguf") continue;
    check(!found, "{} holds more than one GGUF file, expected the path of one of them",
          folder.string());
    found = entry.path();
  }
  return found;
}

}  // namespace adder
