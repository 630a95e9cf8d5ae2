// convert_state on a CUDA device.

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/convert_state/convert_state.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"
#include "tests/support/state_rounding.h"

namespace adder {
namespace {

using ConvertStateCuda = test::OnDevice;
using test::DeviceBuffer;

// Of `nsequences` sequences with as many elements each.
std::vector<float> convert(const std::vector<float>& values, DType from, DType to,
                           std::int64_t nsequences = 1, std::int64_t misalignment = 0) {
  const std::int64_t size = std::ssize(values) / nsequences;
  const DeviceBuffer input(from, values, misalignment);
  const DeviceBuffer output(to, std::ssize(values), misalignment);
  cuda::convert_state(
      {.from = input.view({nsequences, size, 1}), .to = output.view({nsequences, size, 1})},
      nullptr);
  EXPECT_TRUE(output.intact());
  return output.values();
}

// Every value that bf16 has, but NaN.
std::vector<float> all_values() {
  std::vector<float> out;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float v = to_float(bf16{static_cast<std::uint16_t>(bits)});
    if (!std::isnan(v)) out.push_back(v);
  }
  return out;
}

TEST_F(ConvertStateCuda, WhatBf16HoldsKeepsItsBits) {
  const std::vector<float> values = all_values();
  for (std::int64_t misalignment : {0, 1}) {
    EXPECT_TRUE(test::same_bits(convert(values, DType::bf16, DType::f32, 1, misalignment), values));
    EXPECT_TRUE(test::same_bits(convert(values, DType::f32, DType::bf16, 1, misalignment), values));
  }
}

TEST_F(ConvertStateCuda, ADTypeToItselfIsACopy) {
  const std::vector<float> values = test::Random().normals(1000);
  EXPECT_TRUE(test::same_bits(convert(values, DType::f32, DType::f32), values));
  const std::vector<float> rounded = test::rounded(values, DType::bf16);
  EXPECT_TRUE(test::same_bits(convert(rounded, DType::bf16, DType::bf16), rounded));
}

TEST_F(ConvertStateCuda, OneOfTheNeighboursInEverySize) {
  test::Random random;
  for (std::int64_t size : {1, 2, 3, 4, 5, 31, 33, 127, 128, 129, 1023, 1024, 1025, 5000}) {
    for (std::int64_t nsequences : {1, 3}) {
      for (std::int64_t misalignment : {0, 1}) {
        std::vector<float> values = random.normals(nsequences * size);
        for (float& v : values) v *= std::exp2(static_cast<float>(random.integer(-130, 120)));
        const auto got = convert(values, DType::f32, DType::bf16, nsequences, misalignment);
        EXPECT_TRUE(test::are_neighbours(got, test::to_double(values), 0))
            << size << " elements, misalignment " << misalignment;
      }
    }
  }
}

TEST_F(ConvertStateCuda, TheMeanIsRight) {
  const std::vector<float> values = test::Random().uniforms(1 << 18, -2, 2);
  for (std::int64_t misalignment : {0, 1}) {
    const auto got = convert(values, DType::f32, DType::bf16, 1, misalignment);
    EXPECT_TRUE(test::is_unbiased(got, values));
  }
}

TEST_F(ConvertStateCuda, NaNRemainsNaNAndInfinityItself) {
  const float nan = std::nanf("");
  for (std::int64_t misalignment : {0, 1}) {
    const std::vector<float> got =
        convert({nan, -nan, std::bit_cast<float>(0x7fffffffU), std::bit_cast<float>(0xffffffffU),
                 std::bit_cast<float>(0x7f800001U), INFINITY, -INFINITY, 0},
                DType::f32, DType::bf16, 1, misalignment);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(std::isnan(got[static_cast<std::size_t>(i)])) << i;
    EXPECT_EQ(got[5], INFINITY);
    EXPECT_EQ(got[6], -INFINITY);
    EXPECT_EQ(got[7], 0);
  }
}

TEST_F(ConvertStateCuda, ASequenceEqualsTheSequenceAlone) {  // known bug 13
  for (std::int64_t size : {37, 128, 600}) {
    const std::vector<float> values = test::Random().normals(5 * size);
    const std::vector<float> all = convert(values, DType::f32, DType::bf16, 5);
    for (std::int64_t s = 0; s < 5; ++s) {
      const auto part = [&](const std::vector<float>& v) {
        return std::vector<float>(v.begin() + s * size, v.begin() + (s + 1) * size);
      };
      // Aligned as it is among the others, since that decides who is rounded with whom.
      const std::int64_t misalignment = size % 4 == 0 ? 0 : 1;
      EXPECT_TRUE(test::same_bits(convert(part(values), DType::f32, DType::bf16, 1, misalignment),
                                  part(all)))
          << size;
    }
  }
}

TEST_F(ConvertStateCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  const std::vector<float> values = test::Random().normals(3000);
  const DeviceBuffer input(DType::f32, values);
  const DeviceBuffer output(DType::bf16, std::ssize(values));
  const ConvertStateArgs args{.from = input.view({3, 10, 100}), .to = output.view({3, 10, 100})};
  cuda::convert_state(args, nullptr);
  const std::vector<float> expected = output.values();
  const cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { cuda::convert_state(args, stream); });
  for (int replay = 0; replay < 2; ++replay) {
    graph.launch(stream);
    EXPECT_TRUE(test::same_bits(output.values(stream), expected));
  }
}

TEST_F(ConvertStateCuda, NothingIsNoWork) {
  const DeviceBuffer output(DType::bf16, 1);
  cuda::convert_state({.from = output.view({0, 4, 4}), .to = output.view({0, 4, 4})}, nullptr);
  EXPECT_TRUE(output.intact());
}

// ---- what needs no device -----------------------------------------------------------------------

TEST(ConvertStateErrors, NameTheArgumentThatIsWrong) {
  static std::byte memory[64];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  const auto error_of = [&](const ConvertStateArgs& args) {
    return test::error_of([&] { validate(args); });
  };
  const TensorView good = view(DType::f32, {2, 3, 4});
  EXPECT_EQ(error_of({.from = good, .to = view(DType::bf16, {2, 3, 4})}), "no error");
  EXPECT_EQ(
      error_of({.from = view(DType::bf16, {2, 3, 4, 5}), .to = view(DType::f32, {2, 3, 4, 5})}),
      "no error");
  EXPECT_EQ(error_of({.from = {}, .to = good}),
            "convert_state: from is missing, expected a tensor of shape (any, any, any, any)");
  EXPECT_EQ(error_of({.from = good, .to = view(DType::bf16, {2, 4, 3})}),
            "convert_state: to has shape (2, 4, 3), expected (2, 3, 4)");
  EXPECT_EQ(error_of({.from = good, .to = view(DType::f16, {2, 3, 4})}),
            "convert_state: to has dtype f16, expected f32 or bf16");
  EXPECT_EQ(
      error_of({.from = good.narrow(2, 0, 2), .to = view(DType::f32, {2, 3, 2})}).substr(0, 20),
      "convert_state: from ");
  std::vector<float> host(24);
  const TensorView on_host = TensorView::of(host.data(), {2, 3, 4});
  EXPECT_EQ(test::error_of([&] { cuda::convert_state({.from = on_host, .to = on_host}, nullptr); }),
            "convert_state: from is in host memory, expected it in memory of a CUDA device");
}

}  // namespace
}  // namespace adder
