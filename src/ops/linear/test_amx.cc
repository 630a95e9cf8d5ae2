// The AMX kernel on emulated tiles, for machines that have none.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/cpu_tier.h"
#include "core/half.h"
#include "ops/linear/kernels.h"
#include "ops/linear/linear.h"
#include "ops/linear/ref.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder {
namespace {

bool can_run() {
  const auto& tiers = supported_cpu_tiers();
  return std::find(tiers.begin(), tiers.end(), CpuTier::avx512) != tiers.end();
}

std::vector<float> in_bf16(const std::vector<float>& values) {
  std::vector<float> out;
  for (float v : values) out.push_back(to_float(to_bf16(v)));
  return out;
}

struct Case {
  std::int64_t ntokens, in, out;
  bool with_bias;
};

template <typename Real>
std::vector<Real> reference(const Case& c, const std::vector<float>& x,
                            const std::vector<float>& weight, const std::vector<float>& bias) {
  const std::vector<Real> x_real(x.begin(), x.end());
  const std::vector<Real> weight_real(weight.begin(), weight.end());
  const std::vector<Real> bias_real(bias.begin(), bias.end());
  const auto in = static_cast<std::size_t>(c.in);
  const auto out = static_cast<std::size_t>(c.out);
  std::vector<Real> y(static_cast<std::size_t>(c.ntokens) * out);
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.ntokens); ++t) {
    ref::linear_row<Real>(std::span(x_real).subspan(t * in, in), weight_real, bias_real,
                          std::span(y).subspan(t * out, out));
  }
  return y;
}

cpu::LinearWork work_of(const Case& c, const cpu::PackedLinear& weight, const float* x,
                        const std::vector<float>& bias, float* y) {
  return {.x = x,
          .x_stride = c.in,
          .ntokens = c.ntokens,
          .in_features = c.in,
          .weights = weight.data(),
          .panel_elements = weight.panel_elements(),
          .panel_begin = 0,
          .panel_end = weight.panels(),
          .bias = bias.empty() ? nullptr : bias.data(),
          .y = y,
          .y_stride = c.out,
          .out_features = c.out};
}

TEST(LinearAmx, IsAsGoodAsPlainLoopsOverRoundedInputs) {
  if (!can_run()) GTEST_SKIP() << "this machine has no AVX-512, which the kernel needs beside AMX";
  ThreadPool pool(1);
  test::Random random;
  for (const Case& c : {Case{1, 32, 16, false}, Case{1, 31, 17, true}, Case{3, 1, 1, true},
                        Case{16, 64, 32, false}, Case{17, 65, 33, true}, Case{33, 97, 47, false},
                        Case{5, 0, 20, true}, Case{40, 1100, 35, true}, Case{300, 600, 20, false},
                        Case{1, 4200, 50, true}, Case{64, 2, 15, true}}) {
    SCOPED_TRACE(::testing::Message() << c.ntokens << " tokens, " << c.in << " to " << c.out);
    const auto x = random.normals(c.ntokens * c.in);
    const auto source = random.normals(c.out * c.in);
    const auto bias = c.with_bias ? random.normals(c.out) : std::vector<float>();
    const cpu::PackedLinear weight =
        cpu::pack_linear(ConstTensorView::of(source.data(), {c.out, c.in}), DType::bf16, pool);
    test::Guarded<float> y(c.ntokens * c.out);
    cpu::tier_amx_emulated::multiply_rounded(
        work_of(c, weight, x.data(), bias, y.view({c.ntokens, c.out}).as<float>()));
    EXPECT_TRUE(test::as_good_as_plain(y.span(),
                                       reference<double>(c, in_bf16(x), in_bf16(source), bias),
                                       reference<float>(c, in_bf16(x), in_bf16(source), bias)));
    EXPECT_TRUE(y.intact());
  }
}

TEST(LinearAmx, ATokenHasTheSameBitsAmongOthersAndInAnyShare) {
  if (!can_run()) GTEST_SKIP() << "this machine has no AVX-512, which the kernel needs beside AMX";
  ThreadPool pool(1);
  test::Random random;
  const Case all{270, 1083, 50, false};
  const auto x = random.normals(all.ntokens * all.in);
  const auto source = random.normals(all.out * all.in);
  const auto bias = random.normals(all.out);
  const cpu::PackedLinear weight =
      cpu::pack_linear(ConstTensorView::of(source.data(), {all.out, all.in}), DType::bf16, pool);
  std::vector<float> expected(static_cast<std::size_t>(all.ntokens * all.out));
  cpu::tier_amx_emulated::multiply_rounded(work_of(all, weight, x.data(), bias, expected.data()));
  for (std::int64_t at_once : {1, 7, 16, 31, 100}) {
    std::vector<float> y(expected.size());
    for (std::int64_t t = 0; t < all.ntokens; t += at_once) {
      Case part = all;
      part.ntokens = std::min(at_once, all.ntokens - t);
      cpu::LinearWork work =
          work_of(part, weight, x.data() + t * all.in, bias, y.data() + t * all.out);
      for (std::int64_t panel = 0; panel < weight.panels(); panel += 3) {  // 3 and 1 of 4
        work.panel_begin = panel;
        work.panel_end = std::min(panel + 3, weight.panels());
        cpu::tier_amx_emulated::multiply_rounded(work);
      }
    }
    EXPECT_TRUE(test::same_bits(y, expected)) << at_once << " at once";
  }
}

}  // namespace
}  // namespace adder
