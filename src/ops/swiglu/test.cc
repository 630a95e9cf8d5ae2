#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/swiglu/ref.h"
#include "ops/swiglu/swiglu.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::Guarded;

TEST(Swiglu, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    test::Pooled pooled;
    for (std::int64_t ntokens : {0, 1, 3, 20}) {
      for (std::int64_t d_mlp : {0, 1, 5, 15, 16, 17, 100, 1023, 1024, 1030, 4500}) {
        test::Random random;
        const auto x = random.normals(ntokens * d_mlp);
        const auto gate = random.normals(ntokens * d_mlp, 4.0);
        Guarded<float> y(ntokens * d_mlp);
        cpu::swiglu({.x = ConstTensorView::of(x.data(), {ntokens, d_mlp}),
                     .gate = ConstTensorView::of(gate.data(), {ntokens, d_mlp}),
                     .y = y.view({ntokens, d_mlp})},
                    pool);
        std::vector<double> truth(x.size());
        std::vector<float> plain(x.size());
        ref::swiglu<double>(test::to_double(x), test::to_double(gate), truth);
        ref::swiglu<float>(x, gate, plain);
        pooled.add(y.span(), truth, plain,
                   fmt::format("{} ntokens {} d_mlp {}", name_of(tier), ntokens, d_mlp));
        EXPECT_TRUE(y.intact());
      }
    }
    EXPECT_TRUE(pooled.as_good_as_plain());
  }
}

TEST(Swiglu, TheHalvesOfAMatrixProductInPlaceAndInEitherOrder) {
  constexpr std::int64_t kTokens = 9;
  constexpr std::int64_t kWidth = 70;
  ThreadPool pool(2);
  test::Random random;
  const auto fc1 = random.normals(kTokens * 2 * kWidth);
  for (std::int64_t gate_at : {kWidth, std::int64_t{0}}) {
    std::vector<float> apart(static_cast<std::size_t>(kTokens * kWidth));
    const auto rows = ConstTensorView::of(fc1.data(), {kTokens, 2 * kWidth});
    cpu::swiglu({.x = rows.narrow(1, kWidth - gate_at, kWidth),
                 .gate = rows.narrow(1, gate_at, kWidth),
                 .y = TensorView::of(apart.data(), {kTokens, kWidth})},
                pool);
    auto shared = fc1;
    const auto own = TensorView::of(shared.data(), {kTokens, 2 * kWidth});
    cpu::swiglu({.x = own.narrow(1, kWidth - gate_at, kWidth),
                 .gate = own.narrow(1, gate_at, kWidth),
                 .y = own.narrow(1, 0, kWidth)},
                pool);
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::span row = std::span(shared).subspan(t * 2 * kWidth, 2 * kWidth);
      EXPECT_TRUE(test::same_bits(row.first(kWidth), std::span(apart).subspan(t * kWidth, kWidth)));
      EXPECT_TRUE(
          test::same_bits(row.last(kWidth), std::span(fc1).subspan((2 * t + 1) * kWidth, kWidth)));
    }
  }
}

TEST(Swiglu, ExtremeGatesGiveNoNaN) {  // known bug 8
  ThreadPool pool(1);
  const std::vector<float> gate{-1e30F, -1e4F, -100, -88, 0, 88, 100, 1e4F, 1e30F};
  const std::vector<float> x(gate.size(), 2.0F);
  const auto n = static_cast<std::int64_t>(gate.size());
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    std::vector<float> y(gate.size());
    cpu::swiglu({.x = ConstTensorView::of(x.data(), {1, n}),
                 .gate = ConstTensorView::of(gate.data(), {1, n}),
                 .y = TensorView::of(y.data(), {1, n})},
                pool);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double z = gate[i];
      const double expected = 2 * z / (1 + std::exp(-z));
      EXPECT_NEAR(y[i], expected, 1e-6 * std::abs(expected) + 1e-30) << name_of(tier) << " " << z;
    }
  }
}

TEST(Swiglu, AnElementDoesNotDependOnThreadsOrOtherRows) {
  constexpr std::int64_t kTokens = 13;
  constexpr std::int64_t kWidth = 2500;
  test::Random random;
  const auto x = random.normals(kTokens * kWidth);
  const auto gate = random.normals(kTokens * kWidth);
  std::vector<float> all(x.size());
  std::vector<float> single(x.size());
  ThreadPool three(3);
  ThreadPool one(1);
  cpu::swiglu({.x = ConstTensorView::of(x.data(), {kTokens, kWidth}),
               .gate = ConstTensorView::of(gate.data(), {kTokens, kWidth}),
               .y = TensorView::of(all.data(), {kTokens, kWidth})},
              three);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    cpu::swiglu({.x = ConstTensorView::of(x.data() + t * kWidth, {1, kWidth}),
                 .gate = ConstTensorView::of(gate.data() + t * kWidth, {1, kWidth}),
                 .y = TensorView::of(single.data() + t * kWidth, {1, kWidth})},
                one);
  }
  EXPECT_TRUE(test::same_bits(all, single));
}

TEST(Swiglu, OffsetsBeyond32Bits) {  // known bug 12
  ThreadPool pool(1);
  const test::Sparse<float> memory(test::kBeyond32Bits + 48);
  if (!memory.ok()) GTEST_SKIP() << "no address space for a sparse mapping";
  TensorView rows = TensorView::of(memory.data(), {2, 48});
  rows.strides[0] = test::kBeyond32Bits;
  memory.data()[test::kBeyond32Bits + 1] = 3.0F;
  memory.data()[test::kBeyond32Bits + 16 + 1] = 100.0F;
  cpu::swiglu(
      {.x = rows.narrow(1, 0, 16), .gate = rows.narrow(1, 16, 16), .y = rows.narrow(1, 32, 16)},
      pool);
  EXPECT_EQ(memory.data()[32 + 1], 0.0F);
  EXPECT_EQ(memory.data()[test::kBeyond32Bits + 32 + 1], 300.0F);
}

TEST(Swiglu, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  std::vector<float> data(64);
  const auto error_of = [&](const SwigluArgs& args) -> std::string {
    return test::error_of([&] { cpu::swiglu(args, pool); });
  };
  const SwigluArgs good{.x = ConstTensorView::of(data.data(), {2, 4}),
                        .gate = ConstTensorView::of(data.data() + 8, {2, 4}),
                        .y = TensorView::of(data.data() + 16, {2, 4})};
  EXPECT_EQ(error_of(good), "no error");
  SwigluArgs args = good;
  args.gate = ConstTensorView::of(data.data(), {2, 5});
  EXPECT_EQ(error_of(args), "swiglu: gate has shape (2, 5), expected (2, 4)");
  args = good;
  args.x = {};
  EXPECT_EQ(error_of(args), "swiglu: x is missing, expected a tensor of shape (any, any)");
  args = good;
  args.y.dtype = DType::bf16;
  EXPECT_EQ(error_of(args), "swiglu: y has dtype bf16, expected f32");
  args = good;
  args.x.strides = {1, 2};
  EXPECT_EQ(error_of(args), "swiglu: x has stride 2 in its last dimension, expected 1");
}

}  // namespace
}  // namespace adder
