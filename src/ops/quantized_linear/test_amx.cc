// The AMX kernels on emulated tiles, for machines that have none: the bits of the other tiers.

#include <gtest/gtest.h>

#include <algorithm>

#include "core/cpu_tier.h"
#include "core/quantized_panel.h"
#include "core/tensor.h"
#include "ops/quantized_linear/kernels.h"
#include "ops/quantized_linear/quantized_linear.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder {
namespace {

struct Case {
  std::int64_t ntokens, in, out;
  bool with_bias;
};

TEST(QuantizedLinearAmx, HasTheBitsOfTheTiersWithFma) {
  const auto& tiers = supported_cpu_tiers();
  if (std::find(tiers.begin(), tiers.end(), CpuTier::avx512) == tiers.end()) {
    GTEST_SKIP() << "this machine has no AVX-512, which the kernels need beside AMX";
  }
  const ScopedCpuTier scoped(CpuTier::avx512);
  ThreadPool pool(1);
  test::Random random;
  for (const Case& c : {Case{1, 32, 16, false}, Case{9, 31, 17, true}, Case{16, 64, 32, false},
                        Case{17, 65, 33, true}, Case{33, 97, 1, false}, Case{5, 0, 20, true},
                        Case{40, 1100, 35, true}, Case{520, 130, 20, false}}) {
    const auto x = random.normals(c.ntokens * c.in);
    const auto source = random.normals(c.out * c.in);
    const auto bias = random.normals(c.out);
    for (WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
      SCOPED_TRACE(::testing::Message() << c.ntokens << " tokens, " << c.in << " to " << c.out
                                        << " " << name_of(format));
      const QuantizedMatrix weight = cpu::quantize_linear(
          ConstTensorView::of(source.data(), {c.out, c.in}), format, {}, "weight", pool);
      std::vector<float> expected(static_cast<std::size_t>(c.ntokens * c.out));
      LinearArgs args{.x = ConstTensorView::of(x.data(), {c.ntokens, c.in}),
                      .bias = {},
                      .y = TensorView::of(expected.data(), {c.ntokens, c.out})};
      if (c.with_bias) args.bias = ConstTensorView::of(bias.data(), {c.out});
      const std::size_t bytes = cpu::quantized_linear_workspace_bytes(args, weight);
      const std::shared_ptr<std::byte> workspace = allocate_host(bytes);
      cpu::quantized_linear(args, weight, {workspace.get(), bytes}, pool);

      // The kernel alone, in two shares of the panels.
      const std::int64_t blocks = weight.blocks();
      const auto count = static_cast<std::size_t>(c.ntokens * blocks);
      std::vector<std::int8_t> values(count * 32);
      std::vector<float> scales(count);
      std::vector<std::int32_t> starts(count);
      const cpu::QuantizedInput to{values.data(), scales.data(), starts.data()};
      cpu::quantized_linear_kernels().quantize({.x = x.data(),
                                                .x_stride = c.in,
                                                .ntokens = c.ntokens,
                                                .in_features = c.in,
                                                .blocks = blocks,
                                                .zero = 0,
                                                .to = to});
      test::Guarded<float> y(c.ntokens * c.out);
      cpu::QuantizedLinearWork work{.x = to,
                                    .ntokens = c.ntokens,
                                    .blocks = blocks,
                                    .weights = reinterpret_cast<const std::uint8_t*>(weight.data()),
                                    .panel_bytes = weight.panel_bytes(),
                                    .panel_begin = 0,
                                    .panel_end = weight.panels() / 2,
                                    .bias = c.with_bias ? bias.data() : nullptr,
                                    .y = y.view({c.ntokens, c.out}).as<float>(),
                                    .y_stride = c.out,
                                    .out_features = c.out};
      const auto& kernels = cpu::tier_amx_emulated::quantized_matrix_kernels();
      const auto multiply =
          format == WeightFormat::int4 ? kernels.multiply_int4 : kernels.multiply_int8;
      multiply(work);
      work.panel_begin = work.panel_end;
      work.panel_end = weight.panels();
      multiply(work);
      EXPECT_TRUE(test::same_bits(y.span(), expected));
      EXPECT_TRUE(y.intact());
    }
  }
}

}  // namespace
}  // namespace adder
