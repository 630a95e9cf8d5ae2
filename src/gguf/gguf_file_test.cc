// The container: what is in a file comes out, and a file that is none ends in one sentence.

#include "gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/gguf_builder.h"

namespace adder {
namespace {

using test::GgufBuilder;
using test::raw;

std::span<const std::byte> bytes_of(const std::string& file) {
  return std::as_bytes(std::span(file));
}

GgufBuilder small_file() {
  GgufBuilder file;
  file.set_text("general.architecture", "mamba2");
  file.set_u32("a.u32", 7);
  file.set_f32("a.f32", 0.5F);
  file.set_bool("a.bool", true);
  file.set("a.u64", test::kGgufU64, raw(std::uint64_t{1} << 40));
  file.set("a.f64", test::kGgufF64, raw(0.25));
  file.set_texts("a.texts", std::vector<std::string>{"one", "", "three"});
  file.set_i32s("a.i32s", std::vector<std::int32_t>{-1, 2});
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  file.add_f32("matrix", {3, 2}, values);
  file.tensors.push_back({"blocks", {64, 2}, test::kGgmlQ8_0, std::string(4 * 34, '\1')});
  file.tensors.push_back({"halves", {5}, test::kGgmlF16, std::string(10, '\2')});
  return file;
}

/// The error of reading a file, from a copy that ends where the file does.
std::string error_of_bytes(const std::string& file) {
  return test::error_of([&] {
    const std::vector<char> exact(file.begin(), file.end());
    GgufFile(std::as_bytes(std::span(exact)), "x.gguf");
  });
}

void expect_refused(const GgufBuilder& file, std::initializer_list<const char*> parts) {
  const std::string message = error_of_bytes(file.build());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_NE(message.find("x.gguf"), std::string::npos) << message;
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
  }
}

/// The error of a getter.
template <typename Get>
std::string error_of_value(const GgufBuilder& file, const Get& get) {
  const std::string bytes = file.build();
  return test::error_of([&] { get(GgufFile(bytes_of(bytes), "x.gguf")); });
}

TEST(GgufFile, ReadsValues) {
  for (const std::uint32_t version : {2U, 3U}) {
    GgufBuilder builder = small_file();
    builder.version = version;
    const std::string bytes = builder.build();
    const GgufFile file(bytes_of(bytes), "x.gguf");
    EXPECT_EQ(file.text("general.architecture"), "mamba2");
    EXPECT_EQ(file.integer("a.u32", 0, 10), 7);
    EXPECT_EQ(file.integer("a.u64", 0, std::int64_t{1} << 41), std::int64_t{1} << 40);
    EXPECT_EQ(file.number("a.f32"), 0.5);
    EXPECT_EQ(file.number("a.f64"), 0.25);
    EXPECT_EQ(file.boolean("a.bool"), true);
    EXPECT_EQ(file.texts("a.texts"), (std::vector<std::string_view>{"one", "", "three"}));
    EXPECT_EQ(file.integers("a.i32s"), (std::vector<std::int32_t>{-1, 2}));
    EXPECT_EQ(file.array_size("a.texts"), 3U);
    EXPECT_TRUE(file.has("a.bool"));
    EXPECT_FALSE(file.has("a.boo"));
    EXPECT_EQ(file.text("none"), std::nullopt);
    EXPECT_EQ(file.texts("none"), std::nullopt);
  }
}

TEST(GgufFile, ReadsTensors) {
  const std::string bytes = small_file().build();
  const GgufFile file(bytes_of(bytes), "x.gguf");
  ASSERT_EQ(file.tensors().size(), 3U);
  const GgufTensor& matrix = file.tensors()[0];
  EXPECT_EQ(matrix.name, "matrix");
  EXPECT_EQ(matrix.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(matrix.dtype, DType::f32);
  EXPECT_FALSE(matrix.blocks);
  ASSERT_EQ(matrix.data.size(), 24U);
  float last = 0;
  std::memcpy(&last, matrix.data.data() + 20, sizeof(last));
  EXPECT_EQ(last, 6.0F);
  const GgufTensor& blocks = file.tensors()[1];
  EXPECT_EQ(blocks.blocks, BlockFormat::q8_0);
  EXPECT_EQ(blocks.data.size(), 4U * 34U);
  EXPECT_EQ(blocks.data.front(), std::byte{1});
  EXPECT_EQ(file.tensors()[2].dtype, DType::f16);
  EXPECT_EQ(file.tensors()[2].data.back(), std::byte{2});
}

TEST(GgufFile, ReadsOtherAlignmentsAndNoTensors) {
  GgufBuilder builder = small_file();
  builder.alignment = 128;
  builder.set_u32("general.alignment", 128);
  const std::string aligned = builder.build();
  EXPECT_EQ(GgufFile(bytes_of(aligned), "x.gguf").tensors()[2].data.back(), std::byte{2});
  builder.tensors.clear();  // a vocabulary alone, which may end before the alignment
  const std::string vocabulary = builder.build();
  EXPECT_TRUE(GgufFile(bytes_of(vocabulary), "x.gguf").tensors().empty());
}

TEST(GgufFile, PassesOverNestedArrays) {
  GgufBuilder file = small_file();
  const std::string inner = raw<std::uint32_t>(test::kGgufU16) + raw<std::uint64_t>(2) + "abcd";
  file.set("nested", test::kGgufArray,
           raw<std::uint32_t>(test::kGgufArray) + raw<std::uint64_t>(2) + inner + inner);
  file.set_u32("after", 9);
  const std::string bytes = file.build();
  EXPECT_EQ(GgufFile(bytes_of(bytes), "x.gguf").integer("after", 0, 9), 9);

  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += raw<std::uint32_t>(test::kGgufArray) + raw<std::uint64_t>(1);
  }
  file.set("nested", test::kGgufArray, deep);
  expect_refused(file, {"\"nested\"", "nest more than 8 deep"});
}

TEST(GgufFile, RefusesEveryTruncation) {
  const std::string file = small_file().build();
  const std::size_t padding = 32 - 10;  // behind the last tensor
  for (std::size_t size = 0; size < file.size() - padding; ++size) {
    EXPECT_NE(error_of_bytes(file.substr(0, size)).find("x.gguf"), std::string::npos) << size;
  }
  EXPECT_EQ(error_of_bytes(file.substr(0, file.size() - padding)), "no error");
}

TEST(GgufFile, RefusesHeadersThatAreNone) {
  EXPECT_NE(error_of_bytes(std::string("GGML") + std::string(100, '\0')).find("GGUF"),
            std::string::npos);
  GgufBuilder file = small_file();
  for (const std::uint32_t version : {1U, 4U}) {
    file.version = version;
    expect_refused(file, {"version", "expected 2 or 3"});
  }
  file.version = 0x03000000;
  expect_refused(file, {"big-endian"});
  for (const std::uint64_t count : {std::uint64_t{12}, ~std::uint64_t{0}}) {
    file = small_file();
    file.tensor_count = count;
    EXPECT_NE(error_of_bytes(file.build()), "no error");
    file = small_file();
    file.value_count = count;
    EXPECT_NE(error_of_bytes(file.build()), "no error");
  }
}

TEST(GgufFile, RefusesBadValues) {
  const auto with = [](std::uint32_t type, const std::string& bytes) {
    GgufBuilder file = small_file();
    file.set("bad", type, bytes);
    return file;
  };
  expect_refused(with(13, ""), {"\"bad\"", "type 13"});
  expect_refused(with(test::kGgufText, raw(~std::uint64_t{0})), {"\"bad\"", "are left"});
  const auto array = [](std::uint32_t type, std::uint64_t count) { return raw(type) + raw(count); };
  expect_refused(with(test::kGgufArray, array(13, 1)), {"\"bad\"", "type 13"});
  expect_refused(with(test::kGgufArray, array(test::kGgufU64, std::uint64_t{1} << 61)),
                 {"\"bad\"", "more than a file can hold"});
  expect_refused(with(test::kGgufArray, array(test::kGgufU8, std::uint64_t{1} << 61)),
                 {"\"bad\"", "are left"});
  expect_refused(with(test::kGgufArray, array(test::kGgufText, ~std::uint64_t{0})), {"\"bad\""});
  GgufBuilder twice = small_file();
  twice.values.push_back(twice.values[1]);
  expect_refused(twice, {"\"a.u32\"", "twice"});
  GgufBuilder split = small_file();
  split.set("split.count", test::kGgufU16, raw(std::uint16_t{3}));
  expect_refused(split, {"one of 3 parts"});
}

TEST(GgufFile, RefusesValuesOfAnotherType) {
  const GgufBuilder file = small_file();
  const auto mentions = [](const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
    }
  };
  mentions(error_of_value(file, [](const GgufFile& f) { f.integer("a.u32", 8, 9); }),
           {"x.gguf", "a.u32", "is 7", "8 to 9"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.integer("a.f32", 0, 9); }),
           {"a.f32", "type f32", "an integer"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.number("a.u32"); }), {"a.u32", "f64"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.boolean("a.u32"); }), {"a.u32", "bool"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.text("a.texts"); }), {"array", "text"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.texts("a.u32"); }), {"array of text"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.texts("a.i32s"); }), {"array of i32"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.numbers("a.i32s"); }), {"one of f32"});
  mentions(error_of_value(file, [](const GgufFile& f) { f.array_size("a.u32"); }), {"an array"});
}

TEST(GgufFile, RefusesBadTensors) {
  const auto with = [](const std::function<void(GgufBuilder::Tensor&)>& change,
                       std::initializer_list<const char*> parts) {
    GgufBuilder file = small_file();
    change(file.tensor("blocks"));
    expect_refused(file, parts);
  };
  using Tensor = GgufBuilder::Tensor;
  with([](Tensor& t) { t.extents = {64, 0}; }, {"\"blocks\"", "extent of 0"});
  with([](Tensor& t) { t.extents = {64, ~std::uint64_t{0}}; }, {"\"blocks\"", "extent of"});
  with([](Tensor& t) { t.extents = {64, 1, 1, 1, 1}; }, {"\"blocks\"", "5 dimensions"});
  with(
      [](Tensor& t) {
        t.extents = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
      },
      {"\"blocks\"", "more elements"});
  with([](Tensor& t) { t.extents = {std::uint64_t{1} << 60, 1}; }, {"\"blocks\"", "bytes of data"});
  with([](Tensor& t) { t.extents = {16, 8}; }, {"\"blocks\"", "(8, 16)", "Q8_0", "multiple of 32"});
  with([](Tensor& t) { t.type = 10; }, {"\"blocks\"", "type 10", "Q4_K"});
  with([](Tensor& t) { t.type = ~0U; }, {"\"blocks\"", "type 4294967295"});
  with([](Tensor& t) { t.offset = 33; }, {"\"blocks\"", "byte 33", "multiple of 32"});
  with([](Tensor& t) { t.offset = 0; }, {"inside those of another"});
  with([](Tensor& t) { t.offset = 64; }, {"\"halves\"", "inside those of another"});
  with([](Tensor& t) { t.offset = 1 << 20; }, {"\"blocks\"", "bytes of data"});
  with([](Tensor& t) { t.offset = ~std::uint64_t{31}; }, {"\"blocks\"", "bytes of data"});
  with([](Tensor& t) { t.name = "matrix"; }, {"\"matrix\"", "twice"});
  GgufBuilder file = small_file();
  for (const std::uint32_t alignment : {0U, 3U, 48U}) {
    file.set_u32("general.alignment", alignment);
    expect_refused(file, {"general.alignment"});
  }
}

}  // namespace
}  // namespace adder
