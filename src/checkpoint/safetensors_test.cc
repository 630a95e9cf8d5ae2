#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "checkpoint/test_files.h"
#include "core/mapped_file.h"
#include "core/tensor.h"

namespace adder {
namespace {

using test::bytes_of;
using test::fails_with;
using test::safetensors_file;
using test::ScratchFolder;

constexpr std::string_view kTwoTensors =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[1,3],"data_offsets":[8,11]}})";

TensorTable read(const std::string& file) { return read_safetensors(bytes_of(file), "x.st"); }

/// The error for a header that describes `data_bytes` of data.
::testing::AssertionResult refuses(const std::string& header, std::size_t data_bytes,
                                   std::vector<std::string> parts) {
  parts.emplace_back("x.st");
  const std::string file = safetensors_file(header, std::string(data_bytes, '\0'));
  return fails_with([&] { read(file); }, parts);
}

TEST(Safetensors, ReadsShapesAndBytes) {
  const std::string file = safetensors_file(kTwoTensors, "abcdefghijk");
  const TensorTable table = read(file);
  ASSERT_EQ(table.size(), 2u);
  const ConstTensorView a = table.at("a");
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.rank, 1);
  EXPECT_EQ(a.dim(0), 2);
  EXPECT_EQ(std::memcmp(a.data, "abcdefgh", 8), 0);
  const ConstTensorView b = table.at("b");
  EXPECT_EQ(b.dtype, DType::u8);
  EXPECT_EQ(b.dim(1), 3);
  EXPECT_EQ(std::memcmp(b.data, "ijk", 3), 0);
}

TEST(Safetensors, ReadsScalarsEmptyTensorsAndMetadata) {
  const std::string file = safetensors_file(
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F16","shape":[0,7],"data_offsets":[4,4]},)"
      R"("s":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}   )",
      "1234");
  const TensorTable table = read(file);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.at("s").rank, 0);
  EXPECT_EQ(table.at("s").numel(), 1);
  EXPECT_EQ(table.at("e").numel(), 0);
  EXPECT_TRUE(read(safetensors_file("{}", "")).empty());
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = safetensors_file(kTwoTensors, "abcdefghijk");
  for (std::size_t size = 0; size < file.size(); ++size) {
    // An exact copy, so that a read past the end is a read past an allocation.
    const std::vector<char> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_TRUE(
        fails_with([&] { read_safetensors(std::as_bytes(std::span(cut)), "x.st"); }, {"x.st"}))
        << size;
  }
}

TEST(Safetensors, RefusesBadHeaders) {
  const auto with_length = [](std::uint64_t length) {
    return fails_with([=] { read(test::little_endian(length, 8) + "{}"); },
                      {"x.st", "header length", std::to_string(length)});
  };
  EXPECT_TRUE(with_length(3));
  EXPECT_TRUE(with_length(100'000'001));
  EXPECT_TRUE(with_length(~std::uint64_t{0}));
  EXPECT_TRUE(refuses("", 0, {"brace"}));
  EXPECT_TRUE(refuses(" {}", 0, {"brace"}));
  EXPECT_TRUE(refuses("{", 0, {"JSON"}));
  EXPECT_TRUE(refuses("{} x", 0, {"JSON"}));
  EXPECT_TRUE(refuses("{\"\xff\":1}", 0, {"JSON"}));
  EXPECT_TRUE(refuses(R"({"a":1e999})", 0, {"JSON"}));
  std::string deep = R"({"a":)";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_TRUE(refuses(deep, 0, {"nests deeper than 64"}));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                      R"("a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                      1, {"\"a\" twice"}));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"U8","dtype":"U8"}})", 1, {"\"dtype\" twice"}));
  EXPECT_TRUE(refuses(R"({"__metadata__":[]})", 0, {"__metadata__", "object"}));
  EXPECT_TRUE(refuses(R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "string"}));
}

TEST(Safetensors, RefusesBadEntries) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  EXPECT_TRUE(refuses(R"({"t":5})", 0, {"\"t\"", "object"}));
  EXPECT_TRUE(refuses(R"({"t":{"shape":[],"data_offsets":[0,1]}})", 1, {"\"t\"", "no dtype"}));
  EXPECT_TRUE(refuses(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"\"t\"", "no shape"}));
  EXPECT_TRUE(refuses(R"({"t":{"dtype":"U8","shape":[]}})", 1, {"\"t\"", "no data_offsets"}));
  EXPECT_TRUE(refuses(entry("3", "[1]", "[0,1]"), 1, {"\"t\"", "dtype", "string"}));
  EXPECT_TRUE(refuses(entry("\"F8_E4M3\"", "[1]", "[0,1]"), 1, {"\"t\"", "F8_E4M3"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "1", "[0,1]"), 1, {"shape", "array"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[-1]", "[0,1]"), 1, {"shape", "-1"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[1.0]", "[0,1]"), 1, {"shape", "1.0"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[9223372036854775808]", "[0,1]"), 1, {"shape", "2^63"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[1,1,1,1,1,1]", "[0,1]"), 1, {"6 dimensions"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[1]", "[0]"), 1, {"data_offsets", "1 elements"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[1]", "[-1,0]"), 1, {"data_offsets", "-1"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[1]", "[1,0]"), 1, {"data_offsets", "[1, 0]"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[2]", "[0,2]"), 1, {"data_offsets", "[0, 2]"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[2]", "[0,1]"), 1, {"\"t\"", "1 bytes", "expected 2"}));
  EXPECT_TRUE(refuses(entry("\"F32\"", "[1]", "[0,1]"), 1, {"\"t\"", "expected 4"}));
  // 2^62 · 4 elements wrap to 0 in 64 bits, and so do their bytes.
  EXPECT_TRUE(refuses(entry("\"U8\"", "[4611686018427387904,4]", "[0,0]"), 0, {"\"t\"", "more"}));
  EXPECT_TRUE(refuses(entry("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, {"\"t\"", "more"}));
  EXPECT_TRUE(refuses(entry("\"U8\"", "[0,4611686018427387904,4]", "[0,0]"), 0, {"\"t\"", "more"}));
}

TEST(Safetensors, RefusesOverlapsGapsAndRests) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  EXPECT_TRUE(refuses(two("[0,2]", "[1,3]"), 3, {"\"b\"", "overlaps"}));
  EXPECT_TRUE(refuses(two("[0,2]", "[0,2]"), 2, {"overlaps"}));
  EXPECT_TRUE(refuses(two("[0,2]", "[3,5]"), 5, {"\"b\"", "gap"}));
  EXPECT_TRUE(refuses(two("[1,3]", "[3,5]"), 5, {"\"a\"", "gap"}));
  EXPECT_TRUE(refuses(two("[0,2]", "[2,4]"), 5, {"end at byte 4", "5"}));
}

TEST(Safetensors, EscapesNamesInErrors) {
  const std::string name = "a\\nb" + std::string(500, 'c');
  EXPECT_TRUE(refuses("{\"" + name + "\":1}", 0, {"a\\x0ab", "..."}));
}

TEST(SafetensorsWriter, RoundTripsEveryDType) {
  const ScratchFolder folder;
  const auto path = folder.path() / "all.safetensors";
  std::vector<Tensor> tensors;
  std::vector<NamedTensor> named;
  for (DType dtype : {DType::u8, DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64,
                      DType::i32, DType::i16, DType::i8, DType::boolean}) {
    tensors.push_back(Tensor::empty(dtype, {3, 5}));
    auto* bytes = static_cast<unsigned char*>(tensors.back().view.data);
    std::iota(bytes, bytes + 15 * size_of(dtype), static_cast<unsigned char>(tensors.size()));
    named.push_back({std::string(name_of(dtype)), tensors.back().view});
  }
  tensors.push_back(Tensor::empty(DType::f32, {0, 4}));
  named.push_back({"empty \"quoted\"\n", tensors.back().view});
  write_safetensors(path, named, {{"made", "here"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), named.size());
  for (const NamedTensor& expected : named) {
    const ConstTensorView got = file.tensor(expected.name);
    EXPECT_EQ(got.dtype, expected.view.dtype);
    ASSERT_EQ(got.rank, expected.view.rank);
    EXPECT_EQ(got.shape, expected.view.shape);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.data) % size_of(got.dtype), 0u) << expected.name;
    EXPECT_EQ(std::memcmp(got.data, expected.view.data, static_cast<std::size_t>(got.size_bytes())),
              0)
        << expected.name;
  }
  EXPECT_TRUE(fails_with([&] { file.tensor("none"); }, {path.string(), "\"none\""}));
}

TEST(SafetensorsWriter, ReplacesAFileOrLeavesIt) {
  const ScratchFolder folder;
  const auto path = folder.write("out.safetensors", "old");
  const Tensor tensor = Tensor::zeros(DType::f32, {4, 2});
  const ConstTensorView strided = ConstTensorView(tensor.view).narrow(1, 0, 1);
  EXPECT_TRUE(fails_with(
      [&] {
        write_safetensors(path, std::vector<NamedTensor>{{"a", strided}});
      },
      {path.string(), "\"a\"", "contiguous"}));
  EXPECT_TRUE(fails_with(
      [&] {
        write_safetensors(path, std::vector<NamedTensor>{{"a", tensor.view}, {"a", tensor.view}});
      },
      {path.string(), "\"a\"", "twice"}));
  EXPECT_TRUE(fails_with(
      [&] {
        write_safetensors(path, std::vector<NamedTensor>{{"__metadata__", tensor.view}});
      },
      {path.string(), "__metadata__"}));
  EXPECT_TRUE(fails_with(
      [&] {
        write_safetensors(path, std::vector<NamedTensor>{{"a", {}}});
      },
      {path.string(), "\"a\"", "missing"}));
  EXPECT_TRUE(fails_with(
      [&] {
        write_safetensors(path, std::vector<NamedTensor>{{"\xff", tensor.view}});
      },
      {path.string(), "UTF-8"}));
  EXPECT_EQ(test::read_file(path), "old");
  write_safetensors(path, std::vector<NamedTensor>{{"a", tensor.view}});
  EXPECT_EQ(SafetensorsFile(path).tensor("a").numel(), 8);
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);  // no temporary file stays
  const auto nowhere = folder.path() / "no" / "out.safetensors";
  EXPECT_TRUE(fails_with([&] { write_safetensors(nowhere, {}); }, {nowhere.string()}));
  EXPECT_TRUE(fails_with([&] { write_safetensors(folder.path(), {}); }, {folder.path().string()}));
}

}  // namespace
}  // namespace adder
