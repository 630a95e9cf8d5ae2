#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "core/tensor.h"
#include "ops/linear/linear.h"
#include "ops/linear/ref.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using cpu::pack_linear;
using cpu::PackedLinear;
using test::Guarded;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// `values` after rounding to `dtype`.
std::vector<float> rounded(const std::vector<float>& values, DType dtype) {
  std::vector<float> out(values.size());
  visit_float(dtype, [&]<typename T>(TypeTag<T>) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(from_float<T>(values[i]));
  });
  return out;
}

template <typename Real>
std::vector<Real> reference(std::int64_t ntokens, std::int64_t out_features,
                            const std::vector<float>& x, const std::vector<float>& weight,
                            const std::vector<float>& bias) {
  const std::vector<Real> x_real(x.begin(), x.end());
  const std::vector<Real> weight_real(weight.begin(), weight.end());
  const std::vector<Real> bias_real(bias.begin(), bias.end());
  std::vector<Real> y(static_cast<std::size_t>(ntokens * out_features));
  for (std::int64_t t = 0; t < ntokens; ++t) {
    const std::size_t in = x.size() / static_cast<std::size_t>(ntokens);
    const auto out = static_cast<std::size_t>(out_features);
    const auto token = static_cast<std::size_t>(t);
    ref::linear_row<Real>(std::span(x_real).subspan(token * in, in), weight_real, bias_real,
                          std::span(y).subspan(token * out, out));
  }
  return y;
}

// Random data for one shape, its result, and where it went wrong.
void check_shape_in_every_dtype(std::int64_t ntokens, std::int64_t in_features,
                                std::int64_t out_features, bool with_bias, ThreadPool& pool) {
  test::Random random(
      static_cast<std::uint64_t>(ntokens * 1000003 + in_features * 1009 + out_features));
  const auto x = random.normals(ntokens * in_features);
  const auto source = random.normals(out_features * in_features);
  const auto bias = with_bias ? random.normals(out_features) : std::vector<float>();
  Guarded<float> x_misaligned(ntokens * in_features);
  x_misaligned.fill(x);
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(::testing::Message()
                 << "tokens " << ntokens << " in " << in_features << " out " << out_features
                 << " bias " << with_bias << " " << name_of(dtype));
    const PackedLinear weight =
        pack_linear(ConstTensorView::of(source.data(), {out_features, in_features}), dtype, pool);
    Guarded<float> y(ntokens * out_features);
    LinearArgs args{.x = x_misaligned.view({ntokens, in_features}),
                    .bias = {},
                    .y = y.view({ntokens, out_features})};
    if (with_bias) args.bias = ConstTensorView::of(bias.data(), {out_features});
    cpu::linear(args, weight, pool);
    const auto stored = rounded(source, dtype);
    EXPECT_TRUE(test::as_good_as_plain(y.span(),
                                       reference<double>(ntokens, out_features, x, stored, bias),
                                       reference<float>(ntokens, out_features, x, stored, bias)));
    if (dtype != DType::bf16 || !multiplies_bf16(active_cpu_tier())) continue;
    // Where it may round x, a tier that multiplies bf16 numbers owes what follows from rounded x.
    args.round_inputs = true;
    cpu::linear(args, weight, pool);
    const auto seen = rounded(x, DType::bf16);
    EXPECT_TRUE(test::as_good_as_plain(
        y.span(), reference<double>(ntokens, out_features, seen, stored, bias),
        reference<float>(ntokens, out_features, seen, stored, bias)));
    EXPECT_TRUE(y.intact());
  }
}

TEST(Linear, AsGoodAsPlainLoopsInEveryTierDtypeAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    SCOPED_TRACE(name_of(tier));
    for (std::int64_t ntokens : {0, 1, 2, 3, 5, 7, 8, 9, 17, 30}) {
      for (std::int64_t in_features : {0, 1, 2, 3, 33, 191, 193}) {
        for (std::int64_t out_features : {0, 1, 15, 16, 17, 49, 120}) {
          const bool with_bias = (ntokens + in_features + out_features) % 2 == 0;
          check_shape_in_every_dtype(ntokens, in_features, out_features, with_bias, pool);
        }
      }
    }
  }
}

TEST(Linear, AsGoodAsPlainLoopsOverSeveralBlocksAndShares) {
  ThreadPool pool(3);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    SCOPED_TRACE(name_of(tier));
    check_shape_in_every_dtype(1, 768, 1000, true, pool);   // panels shared out, one token
    check_shape_in_every_dtype(8, 501, 700, true, pool);    // the most tokens read from storage
    check_shape_in_every_dtype(70, 769, 333, true, pool);   // several blocks of inputs
    check_shape_in_every_dtype(200, 400, 40, false, pool);  // tokens shared out
    check_shape_in_every_dtype(521, 200, 176, true, pool);  // several blocks of tokens
  }
}

// The bits of y for x's tokens [begin, begin + count) in one call.
void run_tokens(const std::vector<float>& x, const PackedLinear& weight, std::int64_t begin,
                std::int64_t count, ThreadPool& pool, std::vector<float>& y,
                bool round_inputs = false) {
  cpu::linear({.x = ConstTensorView::of(x.data() + begin * weight.in_features(),
                                        {count, weight.in_features()}),
               .bias = {},
               .y = TensorView::of(y.data() + begin * weight.out_features(),
                                   {count, weight.out_features()}),
               .round_inputs = round_inputs},
              weight, pool);
}

TEST(Linear, ATokenHasTheSameBitsInEveryCallAndWithAnyThreads) {
#if defined(ADDER_TESTS_EMULATED)
  constexpr std::int64_t kTokens = 40;  // an emulated processor takes minutes for 530
#else
  constexpr std::int64_t kTokens = 530;
#endif
  constexpr std::int64_t kIn = 797;  // two blocks, of an odd number of inputs together
  test::Random random;
  const auto x = random.normals(kTokens * kIn);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (DType dtype : kDTypes) {
      for (std::int64_t out_features : {37, 250}) {
        SCOPED_TRACE(::testing::Message() << name_of(tier) << " " << name_of(dtype));
        const auto source = random.normals(out_features * kIn);
        ThreadPool one(1);
        const PackedLinear weight =
            pack_linear(ConstTensorView::of(source.data(), {out_features, kIn}), dtype, one);
        std::vector<float> expected(static_cast<std::size_t>(kTokens * out_features));
        run_tokens(x, weight, 0, kTokens, one, expected, true);
        for (int nthreads : {2, 5}) {
          ThreadPool pool(nthreads);
          for (std::int64_t at_once : {std::int64_t{1}, std::int64_t{2}, std::int64_t{4},
                                       std::int64_t{8}, std::int64_t{13}, kTokens}) {
            std::vector<float> y(expected.size());
            for (std::int64_t t = 0; t < kTokens; t += at_once) {
              run_tokens(x, weight, t, std::min(at_once, kTokens - t), pool, y, true);
            }
            EXPECT_TRUE(test::same_bits(y, expected)) << nthreads << " threads, " << at_once;
          }
        }
      }
    }
  }
}

TEST(Linear, TiersWithFmaAgreeBitForBit) {
  std::vector<CpuTier> tiers;
  for (CpuTier tier : supported_cpu_tiers()) {
    if (tier >= CpuTier::avx2) tiers.push_back(tier);
  }
  if (tiers.size() < 2) GTEST_SKIP() << "this machine has fewer than two tiers with FMA";
  constexpr std::int64_t kTokens = 11;
  constexpr std::int64_t kIn = 300;
  constexpr std::int64_t kOut = 100;
  test::Random random;
  const auto x = random.normals(kTokens * kIn);
  const auto source = random.normals(kOut * kIn);
  ThreadPool pool(2);
  for (DType dtype : kDTypes) {
    const PackedLinear weight =
        pack_linear(ConstTensorView::of(source.data(), {kOut, kIn}), dtype, pool);
    std::vector<float> first;
    for (CpuTier tier : tiers) {
      const ScopedCpuTier scoped(tier);
      std::vector<float> y(kTokens * kOut);
      run_tokens(x, weight, 0, kTokens, pool, y);
      if (first.empty()) first = y;
      EXPECT_TRUE(test::same_bits(y, first)) << name_of(tier) << " " << name_of(dtype);
    }
  }
}

TEST(Linear, PacksEverySourceDtypeAndUnpacksItsRows) {
  constexpr std::int64_t kOut = 21;
  constexpr std::int64_t kIn = 131;
  constexpr std::int64_t kStride = 140;
  test::Random random;
  auto wide = random.normals(kOut * kStride, 1e-3);
  // Halfway cases of both 16-bit types, a subnormal, the extremes of f32, and negative zero.
  wide[0] = 1.00390625F;
  wide[1] = 1.01171875F;
  wide[2] = 1.00048828125F;
  wide[3] = 3e-8F;
  wide[4] = std::numeric_limits<float>::max();
  wide[5] = -0.0F;
  wide[6] = std::numeric_limits<float>::infinity();
  ThreadPool pool(2);
  for (DType from : kDTypes) {
    const Tensor source = convert(ConstTensorView::of(wide.data(), {kOut, kStride}), from);
    const auto held = rounded(wide, from);
    for (DType to : kDTypes) {
      SCOPED_TRACE(::testing::Message() << name_of(from) << " to " << name_of(to));
      const PackedLinear weight = pack_linear(source.view.narrow(1, 0, kIn), to, pool);
      EXPECT_EQ(weight.out_features(), kOut);
      EXPECT_EQ(weight.in_features(), kIn);
      EXPECT_EQ(weight.dtype(), to);
      const std::int64_t padded = to == DType::bf16 ? kIn + 1 : kIn;
      EXPECT_EQ(weight.bytes(), 32 * padded * static_cast<std::int64_t>(size_of(to)));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weight.data()) % 64, 0u);
      const auto expected = rounded(held, to);
      std::vector<float> row(kIn);
      for (std::int64_t o = 0; o < kOut; ++o) {
        weight.unpack_row(o, row);
        EXPECT_TRUE(test::same_bits(
            row, std::span(expected).subspan(static_cast<std::size_t>(o * kStride), kIn)));
      }
    }
  }
}

TEST(Linear, RowsMayBeAnyStrideApart) {
  constexpr std::int64_t kTokens = 19;
  constexpr std::int64_t kIn = 50;
  constexpr std::int64_t kOut = 35;
  test::Random random;
  const auto x = random.normals(kTokens * kIn);
  const auto source = random.normals(kOut * kIn);
  ThreadPool pool(2);
  const PackedLinear weight =
      pack_linear(ConstTensorView::of(source.data(), {kOut, kIn}), DType::f32, pool);
  std::vector<float> expected(kTokens * kOut);
  run_tokens(x, weight, 0, kTokens, pool, expected);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    run_tokens(x, weight, 0, kTokens, pool, expected);
    // y as columns [5, 40) of rows of 47, from the last row to the first.
    Guarded<float> y(kTokens * 47);
    TensorView rows = y.view({kTokens, 47}).narrow(1, 5, kOut);
    rows.data = rows.as<float>() + (kTokens - 1) * 47;
    rows.strides[0] = -47;
    cpu::linear({.x = ConstTensorView::of(x.data(), {kTokens, kIn}), .bias = {}, .y = rows}, weight,
                pool);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto begin = static_cast<std::size_t>((kTokens - 1 - t) * 47);
      EXPECT_TRUE(
          test::same_bits(y.span().subspan(begin + 5, kOut),
                          std::span(expected).subspan(static_cast<std::size_t>(t) * kOut, kOut)));
      for (std::size_t c : {0, 4, 40, 46}) EXPECT_TRUE(std::isnan(y.span()[begin + c])) << c;
    }
    EXPECT_TRUE(y.intact());

    // One row of x for all tokens.
    ConstTensorView same = ConstTensorView::of(x.data(), {kTokens, kIn});
    same.strides[0] = 0;
    std::vector<float> repeated(kTokens * kOut);
    cpu::linear({.x = same, .bias = {}, .y = TensorView::of(repeated.data(), {kTokens, kOut})},
                weight, pool);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      EXPECT_TRUE(
          test::same_bits(std::span(repeated).subspan(static_cast<std::size_t>(t) * kOut, kOut),
                          std::span(expected).first(kOut)));
    }
  }
}

TEST(Linear, OffsetsBeyondTwoToThe31Elements) {
  constexpr std::int64_t kStride = test::kBeyond32Bits + 5;
  constexpr std::int64_t kIn = 20;
  constexpr std::int64_t kOut = 3;
  constexpr std::int64_t kTokens = 10;
  const test::Sparse<float> x(kTokens * kStride + kIn);
  const test::Sparse<float> source(kOut * kStride + kIn);
  const test::Sparse<float> y(kTokens * kStride + kOut);
  if (!x.ok() || !source.ok() || !y.ok()) {
    GTEST_SKIP() << "this machine does not grant 180 GB of address space";
  }
  test::Random random;
  const auto x_dense = random.normals(kTokens * kIn);
  const auto source_dense = random.normals(kOut * kIn);
  const auto spread = [&](const std::vector<float>& dense, std::int64_t rows,
                          const test::Sparse<float>& to) {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(dense.begin() + r * kIn, kIn, to.data() + r * kStride);
    }
    TensorView view = TensorView::of(to.data(), {rows, kIn});
    view.strides[0] = kStride;
    return view;
  };
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (DType dtype : kDTypes) {
      const PackedLinear weight = pack_linear(spread(source_dense, kOut, source), dtype, pool);
      TensorView out = TensorView::of(y.data(), {kTokens, kOut});
      out.strides[0] = kStride;
      cpu::linear({.x = spread(x_dense, kTokens, x), .bias = {}, .y = out}, weight, pool);
      const PackedLinear dense =
          pack_linear(ConstTensorView::of(source_dense.data(), {kOut, kIn}), dtype, pool);
      std::vector<float> expected(kTokens * kOut);
      run_tokens(x_dense, dense, 0, kTokens, pool, expected);
      for (std::int64_t t = 0; t < kTokens; ++t) {
        EXPECT_TRUE(
            test::same_bits(std::span(y.data() + t * kStride, kOut),
                            std::span(expected).subspan(static_cast<std::size_t>(t) * kOut, kOut)));
      }
    }
  }
}

TEST(Linear, InfinitiesStayInTheirTokenAndOutput) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // Three inputs, so that a pair of bf16 weights is half padding; 17 outputs, so that lanes are.
  std::vector<float> x(12 * 3, 1.0F);
  x[5] = kInf;  // token 1, input 2
  std::vector<float> source(17 * 3, 1.0F);
  source[16 * 3 + 2] = 0.0F;
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (DType dtype : kDTypes) {
      for (std::int64_t ntokens : {2, 12}) {
        const PackedLinear weight =
            pack_linear(ConstTensorView::of(source.data(), {17, 3}), dtype, pool);
        std::vector<float> y(12 * 17);
        run_tokens(x, weight, 0, ntokens, pool, y, true);
        EXPECT_EQ(y[0], 3.0F);
        EXPECT_EQ(y[16], 2.0F);
        EXPECT_EQ(y[17], kInf);
        EXPECT_TRUE(std::isnan(y[17 + 16]));
      }
    }
  }
}

std::string message_of(const LinearArgs& args, const PackedLinear& weight) {
  ThreadPool pool(1);
  return test::error_of([&] { cpu::linear(args, weight, pool); });
}

TEST(Linear, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  std::vector<float> data(1000);
  std::vector<float> out(1000);
  const PackedLinear weight =
      pack_linear(ConstTensorView::of(data.data(), {5, 8}), DType::f32, pool);
  const LinearArgs good{.x = ConstTensorView::of(data.data(), {4, 8}),
                        .bias = ConstTensorView::of(data.data(), {5}),
                        .y = TensorView::of(out.data(), {4, 5})};
  EXPECT_EQ(message_of(good, weight), "no error");
  LinearArgs args = good;
  args.x = ConstTensorView::of(data.data(), {4, 7});
  EXPECT_EQ(message_of(args, weight), "linear: x has shape (4, 7), expected (any, 8)");
  args = good;
  args.y = TensorView::of(out.data(), {4, 8});
  EXPECT_EQ(message_of(args, weight), "linear: y has shape (4, 8), expected (4, 5)");
  args = good;
  args.y.strides[0] = 4;
  EXPECT_EQ(message_of(args, weight),
            "linear: y has row stride 4, expected at least out_features 5 so that rows do not "
            "overlap");
  args = good;
  args.y.data = data.data();
  EXPECT_EQ(message_of(args, weight), "linear: y is x, expected another tensor");
  args = good;
  args.bias = ConstTensorView::of(data.data(), {4});
  EXPECT_EQ(message_of(args, weight), "linear: bias has shape (4), expected (5)");
  args = good;
  args.x.dtype = DType::bf16;
  EXPECT_NE(message_of(args, weight).find("linear: x"), std::string::npos);
  args = good;
  args.x.strides[1] = 2;
  EXPECT_NE(message_of(args, weight).find("linear: x"), std::string::npos);
  args = good;
  args.accumulate = true;
  EXPECT_EQ(message_of(args, weight),
            "linear: accumulate is set for tensors in host memory, expected it on a CUDA device "
            "only");
  args = good;
  args.x = {};
  EXPECT_NE(message_of(args, weight).find("linear: x"), std::string::npos);

  const auto source = ConstTensorView::of(data.data(), {5, 8});
  EXPECT_THROW(pack_linear(source, DType::i8, pool), Error);
  EXPECT_THROW(pack_linear(ConstTensorView::of(data.data(), {40}), DType::f32, pool), Error);
  EXPECT_THROW(pack_linear(ConstTensorView{}, DType::f32, pool), Error);
  std::vector<float> row(8);
  EXPECT_THROW(weight.unpack_row(5, row), Error);
  EXPECT_THROW(weight.unpack_row(-1, row), Error);
  EXPECT_THROW(weight.unpack_row(0, std::span(row).first(7)), Error);
}

}  // namespace
}  // namespace adder
