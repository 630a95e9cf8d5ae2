#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/cpu_tier.h"
#include "core/half.h"
#include "core/quantized_panel.h"
#include "core/tensor.h"
#include "ops/quantized_linear/fit.h"
#include "ops/quantized_linear/quantized_linear.h"
#include "ops/quantized_linear/ref.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using cpu::quantize_linear;
using test::Guarded;

constexpr WeightFormat kFormats[] = {WeightFormat::int8, WeightFormat::int4};
constexpr auto kBlock = static_cast<std::size_t>(kQuantBlock);
constexpr std::size_t kInputBlock = 256;

QuantizedMatrix quantized(const std::vector<float>& source, std::int64_t out, std::int64_t in,
                          WeightFormat format, ThreadPool& pool) {
  return quantize_linear(ConstTensorView::of(source.data(), {out, in}), format, {}, "weight", pool);
}

void run(const LinearArgs& args, const QuantizedMatrix& weight, ThreadPool& pool) {
  const std::size_t bytes = cpu::quantized_linear_workspace_bytes(args, weight);
  const std::shared_ptr<std::byte> workspace = allocate_host(bytes);
  cpu::quantized_linear(args, weight, {workspace.get(), bytes}, pool);
}

// The integers and scales that a weight holds.
template <typename Real>
ref::QuantizedRow<Real> row_of(const QuantizedMatrix& weight, std::int64_t row) {
  const QuantizedPanel layout(weight.format(), weight.blocks());
  const std::byte* panel = weight.data() + row / kQuantPanelRows * weight.panel_bytes();
  const std::int64_t lane = row % kQuantPanelRows;
  ref::QuantizedRow<Real> out;
  for (std::int64_t i = 0; i < weight.columns(); ++i) {
    out.values.push_back(layout.value(panel, i, lane));
  }
  for (std::int64_t b = 0; b < weight.blocks(); ++b) {
    out.scales.push_back(static_cast<Real>(to_float(layout.scale(panel, b, lane))));
  }
  return out;
}

template <typename Real>
std::vector<Real> reference(std::int64_t ntokens, const std::vector<float>& x,
                            const QuantizedMatrix& weight, const std::vector<float>& bias) {
  const auto in = static_cast<std::size_t>(weight.columns());
  std::vector<ref::QuantizedRow<Real>> rows;
  for (std::int64_t o = 0; o < weight.rows(); ++o) rows.push_back(row_of<Real>(weight, o));
  std::vector<Real> y;
  for (std::size_t t = 0; t < static_cast<std::size_t>(ntokens); ++t) {
    const auto input = ref::quantize_input<Real>(std::span(x).subspan(t * in, in), kInputBlock);
    for (std::size_t o = 0; o < rows.size(); ++o) {
      y.push_back(ref::quantized_dot<Real>(rows[o], kBlock, input, kInputBlock,
                                           bias.empty() ? Real(0) : static_cast<Real>(bias[o])));
    }
  }
  return y;
}

void check_shape(std::int64_t ntokens, std::int64_t in, std::int64_t out, bool with_bias,
                 ThreadPool& pool) {
  test::Random random(static_cast<std::uint64_t>(ntokens * 1000003 + in * 1009 + out));
  const auto x = random.normals(ntokens * in);
  const auto source = random.normals(out * in);
  const auto bias = with_bias ? random.normals(out) : std::vector<float>();
  Guarded<float> x_misaligned(ntokens * in);
  x_misaligned.fill(x);
  for (WeightFormat format : kFormats) {
    SCOPED_TRACE(::testing::Message() << "tokens " << ntokens << " in " << in << " out " << out
                                      << " bias " << with_bias << " " << name_of(format));
    const QuantizedMatrix weight = quantized(source, out, in, format, pool);
    Guarded<float> y(ntokens * out);
    LinearArgs args{.x = x_misaligned.view({ntokens, in}), .bias = {}, .y = y.view({ntokens, out})};
    if (with_bias) args.bias = ConstTensorView::of(bias.data(), {out});
    run(args, weight, pool);
    EXPECT_TRUE(test::as_good_as_plain(y.span(), reference<double>(ntokens, x, weight, bias),
                                       reference<float>(ntokens, x, weight, bias)));
    EXPECT_TRUE(y.intact());
  }
}

TEST(QuantizedLinear, AsGoodAsPlainLoopsInEveryTierFormatAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    SCOPED_TRACE(name_of(tier));
    for (std::int64_t ntokens : {0, 1, 2, 3, 4, 5, 7, 9, 30}) {
      for (std::int64_t in : {0, 1, 31, 32, 33, 65, 191, 300}) {
        for (std::int64_t out : {0, 1, 15, 16, 17, 49, 120}) {
          check_shape(ntokens, in, out, (ntokens + in + out) % 2 == 0, pool);
        }
      }
    }
  }
}

TEST(QuantizedLinear, AsGoodAsPlainLoopsOverSeveralBlocksAndShares) {
  ThreadPool pool(3);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    SCOPED_TRACE(name_of(tier));
    check_shape(1, 768, 1000, true, pool);    // panels shared out, one token
    check_shape(70, 2200, 100, true, pool);   // several blocks of inputs
    check_shape(200, 400, 40, false, pool);   // tokens shared out
    check_shape(1100, 100, 176, true, pool);  // several blocks of tokens
    check_shape(9, 5400, 33, true, pool);     // codes of 4 bits taken apart in two parts
  }
}

// What a tier multiplies is the same integers; sums with FMA are the same bits too.
TEST(QuantizedLinear, ATokenHasTheSameBitsInEveryCallTierAndWithAnyThreads) {
  constexpr std::int64_t kTokens = 530;
  constexpr std::int64_t kIn = 1400;
  test::Random random;
  const auto x = random.normals(kTokens * kIn);
  for (WeightFormat format : kFormats) {
    for (std::int64_t out : {37, 250}) {
      const auto source = random.normals(out * kIn);
      ThreadPool one(1);
      const QuantizedMatrix weight = quantized(source, out, kIn, format, one);
      const auto run_tokens = [&](std::int64_t begin, std::int64_t count, ThreadPool& pool,
                                  std::vector<float>& y) {
        run({.x = ConstTensorView::of(x.data() + begin * kIn, {count, kIn}),
             .bias = {},
             .y = TensorView::of(y.data() + begin * out, {count, out})},
            weight, pool);
      };
      std::vector<float> with_fma;
      for (CpuTier tier : supported_cpu_tiers()) {
        const ScopedCpuTier scoped(tier);
        SCOPED_TRACE(::testing::Message() << name_of(tier) << " " << name_of(format));
        std::vector<float> expected(static_cast<std::size_t>(kTokens * out));
        run_tokens(0, kTokens, one, expected);
        if (tier != CpuTier::baseline) {
          if (with_fma.empty()) with_fma = expected;
          EXPECT_TRUE(test::same_bits(expected, with_fma));
        }
        for (int nthreads : {2, 5}) {
          ThreadPool pool(nthreads);
          for (std::int64_t at_once : {1, 2, 4, 5, 13, 530}) {
            std::vector<float> y(expected.size());
            for (std::int64_t t = 0; t < kTokens; t += at_once) {
              run_tokens(t, std::min(at_once, kTokens - t), pool, y);
            }
            EXPECT_TRUE(test::same_bits(y, expected)) << nthreads << " threads, " << at_once;
          }
        }
      }
    }
  }
}

TEST(QuantizedLinear, IsNearTheWeightItWasMadeFrom) {
  ThreadPool pool(2);
  constexpr std::int64_t kOut = 200;
  constexpr std::int64_t kIn = 768;
  test::Random random;
  const auto x = random.normals(kIn);
  const auto source = random.normals(kOut * kIn);
  std::vector<double> truth(kOut, 0.0);
  for (std::size_t o = 0; o < kOut; ++o) {
    for (std::size_t i = 0; i < kIn; ++i) truth[o] += double{source[o * kIn + i]} * x[i];
  }
  for (WeightFormat format : kFormats) {
    const QuantizedMatrix weight = quantized(source, kOut, kIn, format, pool);
    std::vector<float> y(kOut);
    run({.x = ConstTensorView::of(x.data(), {1, kIn}),
         .bias = {},
         .y = TensorView::of(y.data(), {1, kOut})},
        weight, pool);
    // The rounding error of normals whose largest of 32, 2.1 on average, is divided by 127 and 8.
    EXPECT_LT(test::relative_error(y, truth), format == WeightFormat::int8 ? 0.009 : 0.09);
    EXPECT_GT(test::relative_error(y, truth), format == WeightFormat::int8 ? 0.004 : 0.05);
  }
}

// What GGUF's Q8_0 and Q4_0 hold: a scale in f16, and integers one of which is the end of the
// range.
TEST(QuantizedLinear, HoldsIntegersTimesAScaleExactly) {
  test::Random random;
  for (int round = 0; round < 2000; ++round) {
    const auto noise = random.normals(33);
    const float scale = to_float(to_f16(noise[32] * std::exp2(static_cast<float>(round % 12 - 9))));
    std::vector<float> wide(kBlock);
    std::vector<float> narrow(kBlock);
    for (std::size_t i = 0; i < kBlock; ++i) {
      wide[i] = scale * std::clamp(std::nearbyint(noise[i] * 50), -127.0F, 127.0F);
      narrow[i] = scale * std::clamp(std::nearbyint(noise[i] * 3), -8.0F, 7.0F);
    }
    wide[static_cast<std::size_t>(round) % kBlock] = scale * (round % 2 == 0 ? 127.0F : -127.0F);
    narrow[static_cast<std::size_t>(round) % kBlock] = scale * -8;
    const cpu::FittedBlock of_wide = cpu::fit_int8(wide);
    const cpu::FittedBlock of_narrow = cpu::fit_int4(narrow, {});
    for (std::size_t i = 0; i < kBlock; ++i) {
      ASSERT_EQ(of_wide.values[i] * to_float(of_wide.scale), wide[i]) << round;
      ASSERT_EQ(of_narrow.values[i] * to_float(of_narrow.scale), narrow[i]) << round;
    }
  }
}

TEST(QuantizedLinear, FourBitsMissLessThanTheEndOfTheRangeWould) {
  test::Random random;
  double fitted = 0;
  double plain = 0;
  double weighed = 0;
  double not_weighed = 0;
  for (int round = 0; round < 500; ++round) {
    const auto weights = random.normals(32);
    const auto importance = random.uniforms(32, 0.0, 1.0);
    float largest = 0;
    for (float w : weights) largest = std::abs(w) > std::abs(largest) ? w : largest;
    const cpu::FittedBlock block = cpu::fit_int4(weights, {});
    const cpu::FittedBlock by_importance = cpu::fit_int4(weights, importance);
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float scale = largest / -8;
      const double miss = weights[i] - block.values[i] * to_float(block.scale);
      fitted += miss * miss;
      plain += std::pow(
          weights[i] - scale * std::clamp(std::nearbyint(weights[i] / scale), -8.0F, 7.0F), 2);
      not_weighed += importance[i] * miss * miss;
      weighed += importance[i] *
                 std::pow(weights[i] - by_importance.values[i] * to_float(by_importance.scale), 2);
    }
  }
  EXPECT_LT(fitted, 0.9 * plain);
  EXPECT_LT(weighed, not_weighed);
}

TEST(QuantizedLinear, PacksEverySourceDtypeAndUnpacksItsRows) {
  ThreadPool pool(2);
  constexpr std::int64_t kOut = 37;
  constexpr std::int64_t kIn = 75;
  test::Random random;
  const auto wide = random.normals(kOut * kIn);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor source = convert(ConstTensorView::of(wide.data(), {kOut, kIn}), dtype);
    const Tensor widened = convert(source.view, DType::f32);
    for (WeightFormat format : kFormats) {
      const QuantizedMatrix weight = quantize_linear(source.view, format, {}, "weight", pool);
      EXPECT_EQ(weight.bytes(), weight.panels() * weight.panel_bytes());
      std::vector<float> row(kIn);
      for (std::int64_t o = 0; o < kOut; ++o) {
        weight.unpack_row(o, row);
        for (std::size_t begin = 0; begin < kIn; begin += kBlock) {
          const auto count = std::min(kBlock, kIn - begin);
          const auto block =
              widened.span<float>().subspan(static_cast<std::size_t>(o * kIn) + begin, count);
          const cpu::FittedBlock fitted =
              format == WeightFormat::int8 ? cpu::fit_int8(block) : cpu::fit_int4(block, {});
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(row[begin + i], fitted.values[i] * to_float(fitted.scale));
          }
        }
      }
    }
  }
}

TEST(QuantizedLinear, WhatIsNotFiniteReachesItsTokenAlone) {
  ThreadPool pool(2);
  constexpr std::int64_t kTokens = 9;
  constexpr std::int64_t kIn = 70;
  constexpr std::int64_t kOut = 40;
  test::Random random;
  const auto source = random.normals(kOut * kIn);
  const auto clean = random.normals(kTokens * kIn);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (WeightFormat format : kFormats) {
      const QuantizedMatrix weight = quantized(source, kOut, kIn, format, pool);
      const auto multiply = [&](const std::vector<float>& x) {
        std::vector<float> y(kTokens * kOut);
        run({.x = ConstTensorView::of(x.data(), {kTokens, kIn}),
             .bias = {},
             .y = TensorView::of(y.data(), {kTokens, kOut})},
            weight, pool);
        return y;
      };
      const auto expected = multiply(clean);
      for (float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        std::vector<float> x = clean;
        x[4 * kIn + 66] = bad;
        const auto y = multiply(x);
        for (std::size_t i = 0; i < y.size(); ++i) {
          if (i / kOut == 4) {
            EXPECT_TRUE(std::isnan(y[i]));
          } else {
            EXPECT_EQ(y[i], expected[i]);
          }
        }
      }
      // Nothing is left of what is too small, and nothing overflows.
      std::vector<float> tiny(clean.size(), 1e-40F);
      for (float v : multiply(tiny)) EXPECT_EQ(v, 0.0F);
      std::vector<float> huge(clean.size(), 1e35F);
      for (float v : multiply(huge)) EXPECT_FALSE(std::isnan(v));
    }
  }
}

TEST(QuantizedLinear, BadArgumentsAreNamed) {
  ThreadPool pool(1);
  const std::vector<float> values(64, 1.0F);
  const auto source = ConstTensorView::of(values.data(), {2, 32});
  EXPECT_EQ(test::error_of([&] { quantize_linear(source, WeightFormat::bf16, {}, "w", pool); }),
            "a quantized matrix has the format bf16, expected int8 or int4");
  EXPECT_EQ(test::error_of([&] {
              quantize_linear(source, WeightFormat::int8, std::vector<float>(31, 1.0F), "w", pool);
            }),
            "quantize_linear: importance has 31 values, expected in_features 32");
  EXPECT_EQ(test::error_of([&] {
              quantize_linear(source, WeightFormat::int8, std::vector<float>(32, -1.0F), "w", pool);
            }),
            "quantize_linear: an importance is negative or not finite, expected at least 0");
  std::vector<float> bad = values;
  bad[40] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(test::error_of([&] { quantized(bad, 2, 32, WeightFormat::int4, pool); }),
            "weight has the value nan in row 1, expected at most 393024 in int4");
  const QuantizedMatrix weight = quantized(values, 2, 32, WeightFormat::int8, pool);
  std::vector<float> row(32);
  EXPECT_EQ(test::error_of([&] { weight.unpack_row(2, row); }),
            "row 2 of a quantized matrix of 2 rows was asked for");
  row.resize(31);
  EXPECT_EQ(test::error_of([&] { weight.unpack_row(0, row); }),
            "a row of a quantized matrix was to be unpacked into 31 values, expected 32");
  std::vector<float> y(2);
  const LinearArgs args{.x = ConstTensorView::of(values.data(), {1, 32}),
                        .bias = {},
                        .y = TensorView::of(y.data(), {1, 2})};
  EXPECT_NE(test::error_of([&] {
              cpu::quantized_linear(args, weight, {}, pool);
            }).find("quantized_linear: workspace has 0 bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace adder
