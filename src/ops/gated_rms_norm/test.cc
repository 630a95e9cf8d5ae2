#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/gated_rms_norm/test_problem.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::GatedNormProblem;
using test::Guarded;
using test::Pooled;

// Runs the operation between canaries and adds its result to `pooled`.
void compare(const GatedNormProblem& p, ThreadPool& pool, Pooled& pooled,
             const std::string& label) {
  Guarded<float> out(p.ntokens * p.d_inner);
  cpu::gated_rms_norm(p.args(out.view({p.ntokens, p.d_inner})), pool);
  pooled.add(out.span(), p.reference<double>(), p.reference<float>(), label);
  EXPECT_TRUE(out.intact()) << label;
}

TEST(GatedRmsNorm, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (int options = 0; options < 16; ++options) {
      GatedNormProblem p{.ntokens = 0, .d_inner = 0};
      p.norm_before_gate = (options & 1) != 0;
      p.with_z = (options & 2) != 0;
      p.with_weight = (options & 4) != 0;
      p.norm = (options & 8) != 0;
      if (!p.norm && (!p.with_z || p.with_weight)) continue;  // refused, see below
      Pooled pooled;
      for (std::int64_t ntokens : {0, 1, 3, 40}) {
        for (std::int64_t d_inner : {1, 2, 15, 16, 17, 64, 100, 384, 1000}) {
          p.ntokens = ntokens;
          p.d_inner = d_inner;
          test::Random random;
          p.fill(random);
          compare(p, pool, pooled,
                  fmt::format("{} ntokens {} d_inner {} options {}", name_of(tier), ntokens,
                              d_inner, options));
        }
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

TEST(GatedRmsNorm, EachGroupIsNormalizedByItself) {  // known bug 6
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (bool norm_before_gate : {false, true}) {
      Pooled pooled;
      for (std::int64_t ngroups : {1, 2, 3, 8}) {
        for (std::int64_t size : {1, 7, 16, 40}) {
          GatedNormProblem p{.ntokens = 5, .d_inner = ngroups * size, .ngroups = ngroups};
          p.norm_before_gate = norm_before_gate;
          test::Random random;
          p.fill(random);
          // Groups of very different size, so that a norm across them would be seen.
          for (std::size_t i = 0; i < p.y.size(); ++i) {
            const auto group = static_cast<std::int64_t>(i) % p.d_inner / size;
            p.y[i] *= static_cast<float>(1 + 10 * group);
          }
          compare(p, pool, pooled,
                  fmt::format("{} ngroups {} size {} norm_before_gate {}", name_of(tier), ngroups,
                              size, norm_before_gate));
        }
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

TEST(GatedRmsNorm, BothGateOrdersAndNoNormOnNumbersDoneByHand) {  // known bug 7
  ThreadPool pool(1);
  // silu(0) = 0, silu(large) = large; so the gate zeroes the first and scales the second by 100.
  const std::vector<float> y{3, 4};
  const std::vector<float> z{0, 100};
  std::vector<float> out(2);
  GatedRmsNormArgs args{.y = ConstTensorView::of(y.data(), {1, 2}),
                        .z = ConstTensorView::of(z.data(), {1, 2}),
                        .weight = {},
                        .out = TensorView::of(out.data(), {1, 2}),
                        .epsilon = 0};
  cpu::gated_rms_norm(args, pool);  // v = (0, 400), rms = 400 / sqrt(2)
  EXPECT_FLOAT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], std::sqrt(2.0F));
  args.norm_before_gate = true;
  cpu::gated_rms_norm(args, pool);  // rms = 5 / sqrt(2)
  EXPECT_FLOAT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], 80 * std::sqrt(2.0F));
  args.norm = false;
  cpu::gated_rms_norm(args, pool);
  EXPECT_FLOAT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], 400);
}

TEST(GatedRmsNorm, InPlaceOverYOrZ) {
  constexpr std::int64_t kTokens = 6;
  constexpr std::int64_t kInner = 132;
  ThreadPool pool(2);
  for (int mode = 0; mode < 3; ++mode) {
    GatedNormProblem p{.ntokens = kTokens, .d_inner = kInner, .ngroups = 2};
    p.norm_before_gate = mode == 1;
    p.norm = mode != 2;
    p.with_weight = p.norm;
    test::Random random;
    p.fill(random);
    std::vector<float> apart(p.y.size());
    cpu::gated_rms_norm(p.args(TensorView::of(apart.data(), {kTokens, kInner})), pool);
    GatedNormProblem over_y = p;
    cpu::gated_rms_norm(over_y.args(TensorView::of(over_y.y.data(), {kTokens, kInner})), pool);
    EXPECT_TRUE(test::same_bits(over_y.y, apart)) << "mode " << mode;
    GatedNormProblem over_z = p;
    cpu::gated_rms_norm(over_z.args(TensorView::of(over_z.z.data(), {kTokens, kInner})), pool);
    EXPECT_TRUE(test::same_bits(over_z.z, apart)) << "mode " << mode;
  }
}

TEST(GatedRmsNorm, ARowDoesNotDependOnThreadsOrOtherRows) {
  constexpr std::int64_t kTokens = 31;
  constexpr std::int64_t kInner = 1200;
  GatedNormProblem p{.ntokens = kTokens, .d_inner = kInner, .ngroups = 4};
  test::Random random;
  p.fill(random);
  std::vector<float> all(p.y.size());
  std::vector<float> single(p.y.size());
  ThreadPool three(3);
  ThreadPool one(1);
  GatedRmsNormArgs args = p.args(TensorView::of(all.data(), {kTokens, kInner}));
  cpu::gated_rms_norm(args, three);
  args.out = TensorView::of(single.data(), {kTokens, kInner});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    GatedRmsNormArgs row = args;
    row.y = args.y.narrow(0, t, 1);
    row.z = args.z.narrow(0, t, 1);
    row.out = args.out.narrow(0, t, 1);
    cpu::gated_rms_norm(row, one);
  }
  EXPECT_TRUE(test::same_bits(all, single));
}

TEST(GatedRmsNorm, StridedRowsLeaveTheGapsAlone) {
  constexpr std::int64_t kTokens = 4;
  constexpr std::int64_t kInner = 37;
  ThreadPool pool(2);
  test::Random random;
  // z is a slice of the rows of in_proj, out of a wider buffer.
  const auto projected = random.normals(kTokens * 100);
  GatedNormProblem p{.ntokens = kTokens, .d_inner = kInner};
  p.fill(random);
  std::vector<float> memory(static_cast<std::size_t>(kTokens * 50), -7.0F);
  GatedRmsNormArgs args = p.args(TensorView::of(memory.data(), {kTokens, 50}).narrow(1, 9, kInner));
  args.z = ConstTensorView::of(projected.data(), {kTokens, 100}).narrow(1, 20, kInner);
  cpu::gated_rms_norm(args, pool);
  for (std::size_t t = 0; t < kTokens; ++t) {
    std::copy_n(projected.data() + t * 100 + 20, kInner, p.z.data() + t * kInner);
  }
  const auto truth = p.reference<double>();
  const auto plain = p.reference<float>();
  for (std::size_t t = 0; t < kTokens; ++t) {
    const auto row = std::span(memory).subspan(t * 50, 50);
    EXPECT_TRUE(test::as_good_as_plain(row.subspan(9, kInner),
                                       std::span(truth).subspan(t * kInner, kInner),
                                       std::span(plain).subspan(t * kInner, kInner)));
    for (std::size_t i = 0; i < 50; ++i) {
      const bool inside = i >= 9 && i < 9 + kInner;
      EXPECT_TRUE(inside || row[i] == -7.0F) << "column " << i << " is " << row[i];
    }
  }
}

TEST(GatedRmsNorm, ExtremeValuesGiveNoNaN) {  // known bug 8
  ThreadPool pool(1);
  const std::vector<float> y{0, 0, 0, 0, 1e4F, -1e4F, 1e-30F, 1, 1, 1, 1, 1};
  const std::vector<float> z{1e4F, -1e4F, 100, -100, 1e4F, -1e4F, 0, 5, 1, 1, 1, 1};
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (bool norm_before_gate : {false, true}) {
      std::vector<float> out(y.size());
      cpu::gated_rms_norm({.y = ConstTensorView::of(y.data(), {3, 4}),
                           .z = ConstTensorView::of(z.data(), {3, 4}),
                           .weight = {},
                           .out = TensorView::of(out.data(), {3, 4}),
                           .norm_before_gate = norm_before_gate},
                          pool);
      for (std::size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(std::isfinite(out[i])) << i;
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(out[i], 0.0F);
    }
  }
}

TEST(GatedRmsNorm, OffsetsBeyond32Bits) {  // known bug 12
  ThreadPool pool(1);
  const test::Sparse<float> memory(test::kBeyond32Bits + 48);
  if (!memory.ok()) GTEST_SKIP() << "no address space for a sparse mapping";
  TensorView rows = TensorView::of(memory.data(), {2, 48});
  rows.strides[0] = test::kBeyond32Bits;
  float* second = memory.data() + test::kBeyond32Bits;
  second[1] = 5.0F;
  second[16 + 1] = 100.0F;
  cpu::gated_rms_norm({.y = rows.narrow(1, 0, 16),
                       .z = rows.narrow(1, 16, 16),
                       .weight = {},
                       .out = rows.narrow(1, 32, 16)},
                      pool);
  EXPECT_EQ(memory.data()[32 + 1], 0.0F);
  EXPECT_FLOAT_EQ(second[32 + 1], 4.0F);  // 500 / (500 / sqrt(16))
}

TEST(GatedRmsNorm, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  std::vector<float> data(96);
  const auto error_of = [&](const GatedRmsNormArgs& args) -> std::string {
    return test::error_of([&] { cpu::gated_rms_norm(args, pool); });
  };
  const GatedRmsNormArgs good{.y = ConstTensorView::of(data.data(), {2, 12}),
                              .z = ConstTensorView::of(data.data() + 24, {2, 12}),
                              .weight = ConstTensorView::of(data.data() + 48, {12}),
                              .out = TensorView::of(data.data() + 64, {2, 12})};
  EXPECT_EQ(error_of(good), "no error");
  GatedRmsNormArgs args = good;
  args.ngroups = 5;
  EXPECT_EQ(error_of(args), "gated_rms_norm: ngroups is 5, expected a divisor of d_inner, 12");
  args.ngroups = 0;
  EXPECT_EQ(error_of(args), "gated_rms_norm: ngroups is 0, expected a divisor of d_inner, 12");
  args = good;
  args.weight = ConstTensorView::of(data.data(), {11});
  EXPECT_EQ(error_of(args), "gated_rms_norm: weight has shape (11), expected (12)");
  args = good;
  args.norm = false;
  EXPECT_EQ(error_of(args),
            "gated_rms_norm: weight is given and norm is false, expected no weight");
  args.weight = {};
  args.z = {};
  EXPECT_EQ(error_of(args),
            "gated_rms_norm: z is missing and norm is false, expected a gate or a norm");
  args = good;
  args.epsilon = -1;
  EXPECT_EQ(error_of(args),
            "gated_rms_norm: epsilon is -1, expected a number that is not negative");
}

}  // namespace
}  // namespace adder
