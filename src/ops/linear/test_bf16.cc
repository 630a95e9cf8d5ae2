// The tiers that round x to bf16 where the weight is bf16: how far that may lead from the exact
// sum. What they do with rounded x is tested with all other tiers in test.cc.

#include <gtest/gtest.h>

#include <cmath>

#include "core/cpu_tier.h"
#include "core/half.h"
#include "ops/linear/linear.h"
#include "tests/support/random.h"

namespace adder {
namespace {

TEST(LinearBf16, RoundingInputsCostsTwoToTheMinus9OfEachProduct) {
  constexpr std::int64_t kTokens = 21;
  constexpr std::int64_t kIn = 700;
  constexpr std::int64_t kOut = 45;
  test::Random random;
  const auto x = random.normals(kTokens * kIn);
  const auto source = random.normals(kOut * kIn);
  ThreadPool pool(2);
  const cpu::PackedLinear weight =
      cpu::pack_linear(ConstTensorView::of(source.data(), {kOut, kIn}), DType::bf16, pool);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    std::vector<float> y(kTokens * kOut);
    cpu::linear({.x = ConstTensorView::of(x.data(), {kTokens, kIn}),
                 .bias = {},
                 .y = TensorView::of(y.data(), {kTokens, kOut}),
                 .round_inputs = true},
                weight, pool);
    double most = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t o = 0; o < kOut; ++o) {
        double truth = 0;
        double products = 0;
        for (std::int64_t i = 0; i < kIn; ++i) {
          const double w = to_float(to_bf16(source[static_cast<std::size_t>(o * kIn + i)]));
          const double product = w * x[static_cast<std::size_t>(t * kIn + i)];
          truth += product;
          products += std::abs(product);
        }
        const double error = std::abs(y[static_cast<std::size_t>(t * kOut + o)] - truth);
        // A sum of n terms in f32, each rounded at most to the next number, adds n · 2^-23.
        const double input = multiplies_bf16(tier) ? std::exp2(-9) : 0;
        EXPECT_LE(error, (input + kIn * std::exp2(-23)) * products) << name_of(tier);
        most = std::max(most, error / products);
      }
    }
    // Random signs: far from the worst case, but not from f32 either.
    if (multiplies_bf16(tier)) {
      EXPECT_GT(most, 1e-5) << name_of(tier);
    } else {
      EXPECT_LT(most, 1e-6) << name_of(tier);
    }
  }
}

}  // namespace
}  // namespace adder
