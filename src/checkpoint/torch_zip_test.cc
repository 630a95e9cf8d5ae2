#include "checkpoint/torch_zip.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "adder/error.h"
#include "checkpoint/test_files.h"

namespace adder {
namespace {

using test::bytes_of;
using test::fails_with;
using test::torch_archive;
using test::ZipBuilder;
namespace pickle = test::pickle;

TensorTable read(const std::string& file) { return read_torch_zip(bytes_of(file), "x.bin"); }

::testing::AssertionResult refuses(const std::string& file, std::vector<std::string> parts) {
  parts.emplace_back("x.bin");
  return fails_with([&] { read(file); }, parts);
}

/// Refuses a pickle with this body beside a storage "0" of 16 bytes.
::testing::AssertionResult refuses_body(const std::string& body, std::vector<std::string> parts) {
  const std::string file =
      torch_archive(pickle::program(body), {{"0", std::string(16, 'x')}}).build();
  return refuses(file, std::move(parts));
}

/// Refuses {"t": value}.
::testing::AssertionResult refuses_value(const std::string& value, std::vector<std::string> parts) {
  return refuses_body(pickle::dict({{pickle::text("t"), value}}), std::move(parts));
}

std::string floats() { return pickle::storage("FloatStorage", "0", 4); }

/// One tensor "t" of 2 by 2 floats.
ZipBuilder small_archive() {
  const std::string body =
      pickle::dict({{pickle::text("t"), pickle::tensor(floats(), 0, {2, 2}, {2, 1})}});
  return torch_archive(pickle::program(body), {{"0", "aaaabbbbccccdddd"}});
}

TEST(TorchZip, ReadsViewsOfSharedStorage) {
  const std::string parameter =
      pickle::call(pickle::global("torch._utils", "_rebuild_parameter"),
                   pickle::tuple({pickle::tensor(floats(), 1, {2}, {2}), "\x88", "N"}));
  const std::string body = pickle::dict({
      {pickle::text("whole"), pickle::tensor(floats(), 0, {4}, {1})},
      {pickle::text("transposed"), pickle::tensor(floats(), 0, {2, 2}, {1, 2})},
      {pickle::text("parameter"), parameter},
      {pickle::text("scalar"), pickle::tensor(floats(), 3, {}, {})},
      {pickle::text("empty"), pickle::tensor(floats(), 4, {0, 3}, {3, 1})},
  });
  const std::string file =
      torch_archive(pickle::program(body), {{"0", "aaaabbbbccccdddd"}}).build();
  const TensorTable table = read(file);
  ASSERT_EQ(table.size(), 5u);
  const auto* base = static_cast<const char*>(table.at("whole").data);
  EXPECT_EQ(std::string_view(base, 16), "aaaabbbbccccdddd");
  EXPECT_EQ(table.at("whole").dtype, DType::f32);
  EXPECT_EQ(table.at("transposed").data, base);
  EXPECT_EQ(table.at("transposed").stride(0), 1);
  EXPECT_EQ(table.at("transposed").stride(1), 2);
  EXPECT_EQ(table.at("parameter").data, base + 4);
  EXPECT_EQ(table.at("parameter").stride(0), 2);
  EXPECT_EQ(table.at("scalar").data, base + 12);
  EXPECT_EQ(table.at("empty").numel(), 0);
}

TEST(TorchZip, ReadsWhatStateDictsCarryBesides) {
  // An OrderedDict with the attribute _metadata, and entries set one by one through the memo.
  const std::string ordered =
      pickle::call(pickle::global("collections", "OrderedDict"), ")") + std::string("q\0", 2);
  const std::string metadata = pickle::dict(
      {{pickle::text("_metadata"),
        pickle::dict({{pickle::text(""), pickle::dict({{pickle::text("version"), "K\x01"}})}})}});
  const std::string body =
      ordered + pickle::text("t") + pickle::tensor(floats(), 0, {4}, {1}) + "s" + metadata + "b";
  const std::string file =
      torch_archive(pickle::program(body), {{"0", std::string(16, 'x')}}).build();
  EXPECT_EQ(read(file).size(), 1u);
}

TEST(TorchZip, ReadsWhatTorchSaves) {
  // See tests/fuzz/make_checkpoint_seeds.py.
  const std::string views = test::read_file("tests/fuzz/torch_zip/views.bin");
  const TensorTable table = read(views);
  const ConstTensorView base = table.at("base");
  for (int i = 0; i < 4; ++i) {
    float value = -1;
    std::memcpy(&value, static_cast<const char*>(base.data) + sizeof(float) * i, sizeof(float));
    EXPECT_EQ(value, static_cast<float>(i));
  }
  EXPECT_EQ(table.at("transposed").data, base.data);
  EXPECT_EQ(table.at("transposed").stride(1), 2);
  EXPECT_EQ(table.at("row").data, static_cast<const char*>(base.data) + 2 * sizeof(float));

  const std::string parameter = test::read_file("tests/fuzz/torch_zip/parameter.bin");
  EXPECT_EQ(read(parameter).at("p").dtype, DType::bf16);

  const std::string state_dict = test::read_file("tests/fuzz/torch_zip/state_dict.bin");
  const TensorTable linear = read(state_dict);
  EXPECT_EQ(linear.at("weight").dtype, DType::f16);
  EXPECT_EQ(linear.at("weight").dim(1), 2);
  EXPECT_EQ(std::memcmp(linear.at("weight").data, "\x00\x38\x00\x38", 4), 0);  // 0.5, 0.5
  EXPECT_EQ(std::memcmp(linear.at("bias").data, "\x00\xc0", 2), 0);            // -2
}

TEST(TorchZip, ReadsEveryIntegerOpcode) {
  const std::string storage =
      pickle::tuple({pickle::text("storage"), pickle::global("torch", "ByteStorage"),
                     pickle::text("0"), pickle::text("cpu"), std::string("J\x2c\x01\0\0", 5)}) +
      "Q";  // 300 elements
  const std::string tensor = pickle::call(
      pickle::global("torch._utils", "_rebuild_tensor_v2"),
      pickle::tuple({storage, "K\xc8", std::string("\x8a\x01\x64\x85", 4),
                     std::string("M\x01\0\x85", 4), "\x89", "N"}));  // 100 elements from 200
  const std::string body = pickle::dict({{pickle::text("t"), tensor}});
  const std::string file =
      torch_archive(pickle::program(body), {{"0", std::string(200, 'x') + std::string(100, 'y')}})
          .build();
  const ConstTensorView view = read(file).at("t");
  EXPECT_EQ(view.dim(0), 100);
  EXPECT_EQ(static_cast<const char*>(view.data)[-1], 'x');
  EXPECT_EQ(static_cast<const char*>(view.data)[0], 'y');
}

TEST(TorchZip, ReadsZip64AndComments) {
  ZipBuilder zip = small_archive();
  zip.zip64 = true;
  EXPECT_EQ(read(zip.build()).at("t").dim(0), 2);
  zip.zip64 = false;
  zip.comment = "PK\x05\x06 looks like the end record, but is not";
  EXPECT_EQ(read(zip.build()).at("t").dim(0), 2);
}

TEST(TorchZip, RefusesEveryTruncation) {
  for (bool zip64 : {false, true}) {
    ZipBuilder zip = small_archive();
    zip.zip64 = zip64;
    const std::string file = zip.build();
    for (std::size_t size = 0; size < file.size(); ++size) {
      const std::vector<char> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_TRUE(
          fails_with([&] { read_torch_zip(std::as_bytes(std::span(cut)), "x.bin"); }, {"x.bin"}))
          << size;
    }
  }
}

TEST(TorchZip, SurvivesEveryChangedByte) {
  const std::string good = small_archive().build();
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (unsigned char value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string file = good;
      file[i] = static_cast<char>(value);
      try {
        const ConstTensorView view = read(file).at("t");
        EXPECT_LE(view.numel() * static_cast<std::int64_t>(size_of(view.dtype)), 16);
      } catch (const Error&) {
      } catch (const std::out_of_range&) {
        // The byte was in the tensor's name.
      }
    }
  }
}

TEST(TorchZip, RefusesOtherFiles) {
  EXPECT_TRUE(refuses("", {"too few"}));
  EXPECT_TRUE(refuses(std::string(100, 'x'), {"no zip directory"}));
  EXPECT_TRUE(refuses("\x80\x02\x8a\x0al\xfc\x9c" + std::string(50, 'x'), {"before 1.6"}));
  ZipBuilder zip;
  zip.entries = {{"a/b", "c"}};
  EXPECT_TRUE(refuses(zip.build(), {"no entry data.pkl"}));
  zip = small_archive();
  zip.entries.emplace_back("archive/constants.pkl", "x");
  EXPECT_TRUE(refuses(zip.build(), {"TorchScript"}));
  zip = small_archive();
  zip.entries[1].second = "big";
  EXPECT_TRUE(refuses(zip.build(), {"byte order", "big"}));
  zip = small_archive();
  zip.entries.emplace_back("other/data.pkl", "x");
  EXPECT_TRUE(refuses(zip.build(), {"two entries data.pkl"}));
}

TEST(TorchZip, RefusesBrokenArchives) {
  ZipBuilder zip = small_archive();
  zip.method = 8;
  EXPECT_TRUE(refuses(zip.build(), {"compressed", "method 8"}));
  zip = small_archive();
  zip.flags = 1;
  EXPECT_TRUE(refuses(zip.build(), {"encrypted"}));
  zip = small_archive();
  zip.entries.push_back(zip.entries[2]);
  EXPECT_TRUE(refuses(zip.build(), {"twice"}));

  const std::string good = small_archive().build();
  const std::size_t end = good.size() - 22;
  const auto patched = [&](std::size_t at, std::uint64_t value, std::size_t count) {
    std::string file = good;
    file.replace(at, count, test::little_endian(value, count));
    return file;
  };
  EXPECT_TRUE(refuses(patched(end + 10, 40, 2), {"directory ends after 4 entries", "40"}));
  EXPECT_TRUE(refuses(patched(end + 12, 0x7fffffff, 4), {"directory covers"}));
  EXPECT_TRUE(refuses(patched(end + 16, good.size(), 4), {"directory covers"}));
  EXPECT_TRUE(refuses(patched(end + 16, 0, 4), {"wrong signature"}));
  const std::size_t directory = good.find("PK\x01\x02");
  EXPECT_TRUE(refuses(patched(directory + 24, 1 << 30, 4), {"compressed"}));
  std::string large = patched(directory + 24, 1 << 30, 4);
  large.replace(directory + 20, 4, test::little_endian(1 << 30, 4));
  EXPECT_TRUE(refuses(large, {"archive/data.pkl", "before the directory"}));
  EXPECT_TRUE(refuses(patched(directory + 28, 0xffff, 2), {"reaches past"}));
  EXPECT_TRUE(refuses(patched(directory + 42, 0xfffffffe, 4), {"local header", "ends at"}));
  EXPECT_TRUE(refuses(patched(directory + 42, 1, 4), {"no local header"}));
  EXPECT_TRUE(refuses(patched(directory + 42, 0xffffffff, 4), {"zip64"}));
  EXPECT_TRUE(refuses(patched(directory + 46, 'x', 1), {"is called"}));
}

TEST(TorchZip, ExecutesNothing) {
  const std::string argument = pickle::tuple({pickle::text("touch pwned")});
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"__builtin__", "exec"},
                                                        {"torch._utils", "_rebuild_tensor_v3"},
                                                        {"torch", "load"},
                                                        {"torch.FloatStorage", ""},
                                                        {"collections", "OrderedDict.__init__"}}) {
    const std::string function = pickle::global(module, name);
    EXPECT_TRUE(
        refuses_body(pickle::call(function, argument), {"\"" + module + "." + name + "\""}));
    EXPECT_TRUE(refuses_value(function, {"\"" + module + "." + name + "\""}));
  }
  EXPECT_TRUE(refuses_value(pickle::call(pickle::global("torch", "FloatStorage"), ")"),
                            {"calls a value that is not a function"}));
  EXPECT_TRUE(refuses_value(pickle::call(pickle::text("eval"), argument), {"not a function"}));
}

TEST(TorchZip, RefusesWrongArguments) {
  const std::string rebuild = pickle::global("torch._utils", "_rebuild_tensor_v2");
  EXPECT_TRUE(refuses_value(pickle::call(rebuild, ")"), {"_rebuild_tensor_v2", "0 arguments"}));
  EXPECT_TRUE(refuses_value(pickle::call(rebuild, pickle::text("x")), {"no tuple"}));
  EXPECT_TRUE(refuses_value(pickle::tensor(pickle::text("0"), 0, {1}, {1}), {"without a storage"}));
  EXPECT_TRUE(refuses_value(pickle::tensor(floats(), -1, {1}, {1}), {"offset of -1"}));
  EXPECT_TRUE(refuses_value(pickle::tensor(floats(), 0, {-1}, {1}), {"size element of -1"}));
  EXPECT_TRUE(refuses_value(pickle::tensor(floats(), 0, {1}, {-1}), {"stride element of -1"}));
  EXPECT_TRUE(refuses_value(pickle::tensor(floats(), 0, {1, 1}, {1}), {"2 dimensions", "1 str"}));
  EXPECT_TRUE(refuses_value(
      pickle::tensor(floats(), 0, std::vector<std::int64_t>(6, 1), std::vector<std::int64_t>(6, 1)),
      {"6 dimensions"}));
  EXPECT_TRUE(refuses_value(
      pickle::call(rebuild, pickle::tuple({floats(), "K\x01", pickle::text("x"), ")", "N", "N"})),
      {"size", "no tuple"}));
  const std::string conjugated = pickle::dict({{pickle::text("conj"), "\x88"}});
  EXPECT_TRUE(refuses_value(pickle::call(rebuild, pickle::tuple({floats(), pickle::integer(0), ")",
                                                                 ")", "N", "N", conjugated})),
                            {"metadata"}));
  EXPECT_TRUE(refuses_value(
      pickle::call(pickle::global("torch._utils", "_rebuild_parameter"), pickle::tuple({"N"})),
      {"_rebuild_parameter"}));
  EXPECT_TRUE(refuses_value(
      pickle::call(pickle::global("collections", "OrderedDict"), pickle::tuple({"N"})),
      {"OrderedDict", "1 arguments"}));
  EXPECT_TRUE(refuses_value(pickle::text("id") + "Q", {"persistent id"}));
  EXPECT_TRUE(refuses_value(pickle::tensor(pickle::storage("FloatStorage", "0", -4), 0, {1}, {1}),
                            {"storage \"0\" -4"}));
  EXPECT_TRUE(refuses_value(
      pickle::tensor(pickle::storage("FloatStorage", std::string(99, '0'), 4), 0, {1}, {1}),
      {"key of 99 bytes"}));
}

TEST(TorchZip, RefusesTensorsOutsideTheirStorage) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const auto view = [](std::int64_t offset, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& strides) {
    return pickle::tensor(floats(), offset, shape, strides);
  };
  EXPECT_TRUE(refuses_value(view(0, {5}, {1}), {"\"t\"", "more elements"}));
  EXPECT_TRUE(refuses_value(view(1, {4}, {1}), {"\"t\"", "past its storage"}));
  EXPECT_TRUE(refuses_value(view(0, {2, 2}, {3, 1}), {"past its storage"}));
  EXPECT_TRUE(refuses_value(view(5, {0}, {1}), {"past its storage"}));
  EXPECT_TRUE(refuses_value(view(kHuge, {1}, {1}), {"past its storage"}));
  EXPECT_TRUE(refuses_value(view(0, {2}, {kHuge}), {"past its storage"}));
  EXPECT_TRUE(refuses_value(view(0, {2, 2}, {kHuge, kHuge}), {"past its storage"}));
  EXPECT_TRUE(refuses_value(view(0, {3}, {kHuge}), {"past its storage"}));
  EXPECT_TRUE(refuses_value(view(0, {kHuge, 4}, {0, 0}), {"more elements"}));
  EXPECT_TRUE(refuses_value(view(0, {0, kHuge, 4}, {1, 1, 1}), {"more elements"}));
  EXPECT_TRUE(refuses_value(view(0, {5}, {0}), {"more elements"}));  // an expanded tensor
  const auto of_storage = [](const std::string& key, std::int64_t numel) {
    return pickle::tensor(pickle::storage("FloatStorage", key, numel), 0, {1}, {1});
  };
  EXPECT_TRUE(refuses_value(of_storage("0", 5), {"16 bytes", "expected 5 elements of f32"}));
  EXPECT_TRUE(refuses_value(of_storage("0", kHuge), {"16 bytes"}));
  EXPECT_TRUE(refuses_value(of_storage("1", 4), {"storage \"1\"", "lacks"}));
  EXPECT_TRUE(refuses_value(of_storage("../version", 1), {"lacks"}));
}

TEST(TorchZip, RefusesOtherPickles) {
  const auto pickle_file = [](const std::string& bytes) {
    return torch_archive(bytes, {}).build();
  };
  EXPECT_TRUE(refuses(pickle_file(""), {"no protocol header"}));
  EXPECT_TRUE(refuses(pickle_file("\x80\x04."), {"protocol 4"}));
  EXPECT_TRUE(refuses(pickle_file("\x80\x02}"), {"cut short"}));
  EXPECT_TRUE(refuses(pickle_file(pickle::program("}") + "x"), {"ends at byte 4 of 5"}));
  EXPECT_TRUE(refuses_body("", {"0 values"}));
  EXPECT_TRUE(refuses_body("}}", {"2 values"}));
  EXPECT_TRUE(refuses_body("}(", {"1 value"}));
  EXPECT_TRUE(refuses_body("N", {"not a state dict"}));
  EXPECT_TRUE(refuses_body("i", {"opcode 0x69"}));
  EXPECT_TRUE(refuses_body("h\x05", {"memo 5"}));
  EXPECT_TRUE(refuses_body("t", {"mark"}));
  EXPECT_TRUE(refuses_body("N\x86", {"empty stack"}));
  EXPECT_TRUE(refuses_body("N(\x85", {"empty stack"}));
  EXPECT_TRUE(refuses_body("R", {"empty stack"}));
  EXPECT_TRUE(refuses_body("Q", {"empty stack"}));
  EXPECT_TRUE(refuses_body("q\x01", {"empty stack"}));
  EXPECT_TRUE(refuses_body("}(Nu", {"odd number"}));
  EXPECT_TRUE(refuses_body("NNNs", {"no dictionary"}));
  EXPECT_TRUE(refuses_body("NNb", {"no dictionary"}));
  EXPECT_TRUE(refuses_body("\x8a\x09" + std::string(9, '\x01'), {"9 bytes"}));
  EXPECT_TRUE(refuses_body("X\xff\xff\xff\xff", {"cut short"}));
  EXPECT_TRUE(refuses_body("cos", {"cut short"}));
  EXPECT_TRUE(refuses_body(pickle::dict({{"N", "N"}}), {"key that is no string"}));
  EXPECT_TRUE(refuses_value(pickle::integer(3), {"\"t\"", "no tensor"}));
  EXPECT_TRUE(refuses_body(pickle::dict({{pickle::text("t"), pickle::tensor(floats(), 0, {1}, {1})},
                                         {pickle::text("t"), "N"}}),
                           {"\"t\" twice"}));
  EXPECT_TRUE(refuses(pickle_file(std::string((16u << 20) + 1, '(')), {"at most 16777216"}));
  EXPECT_TRUE(refuses_body(std::string((1u << 20) + 1, 'N'), {"more than 1048576 values"}));
  EXPECT_TRUE(refuses_body(std::string(1u << 22, '('), {"more than 1048576 marks"}));
  // A dictionary that holds itself.
  EXPECT_TRUE(refuses_body("}q\x01" + pickle::text("t") + "h\x01s", {"\"t\"", "no tensor"}));
}

}  // namespace
}  // namespace adder
