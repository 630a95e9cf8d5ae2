#include <gtest/gtest.h>

#include <tuple>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/test_problem.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using test::Guarded;
using test::RmsNormProblem;

TEST(RmsNorm, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t ntokens : {0, 1, 3, 40}) {
      for (std::int64_t d_model : {1, 2, 15, 16, 17, 64, 100, 384, 1000}) {
        for (int options = 0; options < 4; ++options) {
          RmsNormProblem p{ntokens, d_model, (options & 1) != 0, (options & 2) != 0};
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " ntokens " << ntokens
                                            << " d_model " << d_model << " options " << options);
          p.fill();
          Guarded<float> r(ntokens * d_model);
          Guarded<float> y(ntokens * d_model);
          r.fill(p.residual);
          cpu::rms_norm(p.args(r.view({ntokens, d_model}), y.view({ntokens, d_model})), pool);

          const auto plain = p.reference<float>();
          EXPECT_TRUE(test::as_good_as_plain(y.span(), p.reference<double>().y, plain.y));
          EXPECT_TRUE(test::same_bits(r.span(), plain.residual));
          EXPECT_TRUE(y.intact());
          EXPECT_TRUE(r.intact());
        }
      }
    }
  }
}

TEST(RmsNorm, ARowDoesNotDependOnThreadsOrOtherRows) {
  constexpr std::int64_t kTokens = 64;
  constexpr std::int64_t kModel = 1000;
  test::Random random;
  auto residual = random.normals(kTokens * kModel);
  std::vector<float> all(residual.size());
  std::vector<float> single(residual.size());
  ThreadPool two(2);
  ThreadPool one(1);
  cpu::rms_norm({.residual = TensorView::of(residual.data(), {kTokens, kModel}),
                 .x = {},
                 .weight = {},
                 .y = TensorView::of(all.data(), {kTokens, kModel})},
                two);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    cpu::rms_norm({.residual = TensorView::of(residual.data() + t * kModel, {1, kModel}),
                   .x = {},
                   .weight = {},
                   .y = TensorView::of(single.data() + t * kModel, {1, kModel})},
                  one);
  }
  EXPECT_TRUE(test::same_bits(all, single));
}

// As Falcon-Mamba normalizes dt, B and C: columns of x_proj's output, without a weight.
TEST(RmsNorm, AStridedSliceInPlaceLeavesTheOtherColumnsAlone) {
  constexpr std::int64_t kTokens = 7;
  constexpr std::int64_t kRow = 90;
  constexpr std::int64_t kBegin = 11;
  constexpr std::int64_t kColumns = 33;
  ThreadPool pool(2);
  test::Random random;
  const auto original = random.normals(kTokens * kRow);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    auto memory = original;
    const TensorView slice =
        TensorView::of(memory.data(), {kTokens, kRow}).narrow(1, kBegin, kColumns);
    cpu::rms_norm({.residual = slice, .x = {}, .weight = {}, .y = slice, .epsilon = 1e-6F}, pool);
    for (std::size_t t = 0; t < kTokens; ++t) {
      const auto row = std::span(memory).subspan(t * kRow, kRow);
      const auto before = std::span(original).subspan(t * kRow, kRow);
      std::vector<double> r64(before.begin() + kBegin, before.begin() + kBegin + kColumns);
      std::vector<double> truth(r64.size());
      ref::rms_norm_row<double>(r64, {}, {}, 1e-6, truth);
      EXPECT_TRUE(test::all_close(row.subspan(kBegin, kColumns), truth, 1e-6)) << name_of(tier);
      EXPECT_TRUE(test::same_bits(row.first(kBegin), before.first(kBegin)));
      constexpr std::size_t kAfter = kRow - kBegin - kColumns;
      EXPECT_TRUE(test::same_bits(row.last(kAfter), before.last(kAfter)));
    }
  }
}

TEST(RmsNorm, AZeroRowStaysFinite) {
  ThreadPool pool(1);
  std::vector<float> zeros(8, 0.0F);
  std::vector<float> y(8, 1.0F);
  cpu::rms_norm({.residual = TensorView::of(zeros.data(), {1, 8}),
                 .x = {},
                 .weight = {},
                 .y = TensorView::of(y.data(), {1, 8})},
                pool);
  EXPECT_TRUE(test::same_bits(y, std::vector<float>(8, 0.0F)));
}

TEST(RmsNorm, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  std::vector<float> data(64);
  RmsNormArgs args{.residual = TensorView::of(data.data(), {4, 8}),
                   .x = {},
                   .weight = ConstTensorView::of(data.data(), {7}),
                   .y = TensorView::of(data.data() + 32, {4, 8})};
  try {
    cpu::rms_norm(args, pool);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rms_norm: weight has shape (7), expected (8)");
  }
  args.weight = {};
  args.residual = {};
  EXPECT_THROW(cpu::rms_norm(args, pool), Error);
}

}  // namespace
}  // namespace adder
