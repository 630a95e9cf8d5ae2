#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/ref.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kWidth = 4;

// As in a Mamba-2 layer: x is a slice of the rows of in_proj, weight is (width, channels) in
// memory.
Measurement measure(std::int64_t ntokens, std::int64_t channels, std::int64_t row, ThreadPool& pool,
                    double min_seconds) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t n) {
    std::vector<float> v(static_cast<std::size_t>(n));
    std::generate(v.begin(), v.end(), [&] { return normal(engine); });
    return v;
  };
  const std::vector<float> projected = random(ntokens * row);
  const std::vector<float> weight = random(channels * kWidth);
  const std::vector<float> bias = random(channels);
  std::vector<float> state(static_cast<std::size_t>((kWidth - 1) * channels));
  std::vector<float> y(static_cast<std::size_t>(ntokens * channels));
  ConstTensorView transposed = ConstTensorView::of(weight.data(), {channels, kWidth});
  transposed.strides = {1, channels};
  const CausalConv1dArgs args{
      .x = ConstTensorView::of(projected.data(), {ntokens, row}).narrow(1, row / 4, channels),
      .weight = transposed,
      .bias = ConstTensorView::of(bias.data(), {channels}),
      .y = TensorView::of(y.data(), {ntokens, channels}),
      .conv_state = TensorView::of(state.data(), {1, kWidth - 1, channels})};
  cpu::causal_conv1d(args, pool);

  Measurement out;
  out.shape = fmt::format("ntokens {}, channels {}, width {}", ntokens, channels, kWidth);
  out.allowed_error = 1e-5;
  // A few channels of the definition.
  for (std::int64_t c = 0; c < channels; c += channels / 7) {
    std::vector<double> x64, truth(static_cast<std::size_t>(ntokens)), weight64;
    for (std::int64_t t = 0; t < ntokens; ++t) {
      x64.push_back(projected[static_cast<std::size_t>(t * row + row / 4 + c)]);
    }
    for (std::int64_t k = 0; k < kWidth; ++k) {
      weight64.push_back(weight[static_cast<std::size_t>(k * channels + c)]);
    }
    const std::vector<double> bias64{bias[static_cast<std::size_t>(c)]};
    std::vector<double> state64(kWidth - 1);
    ref::causal_conv1d<double>(x64, weight64, bias64, kWidth, true, {}, state64, truth);
    for (std::int64_t t = 0; t < ntokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const double got = y[static_cast<std::size_t>(t * channels + c)];
      out.error = std::max(out.error, std::abs(truth[at] - got));
    }
  }
  require_accuracy("causal_conv1d", out.shape, out.error, out.allowed_error);
  const auto count = static_cast<double>(ntokens * channels);
  out.bytes = 8.0 * count + 4.0 * static_cast<double>((3 * kWidth - 1) * channels);
  out.flops = (2.0 * kWidth + 15.0) * count;
  out.timing = time_calls([&] { cpu::causal_conv1d(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark causal_conv1d_benchmark() {
  return {.name = "causal_conv1d",
          .description = "depthwise causal convolution with bias and SiLU",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            // mamba2-130m and mamba2-2.7b
            for (const auto& [channels, row] : {std::pair{1792, 3352}, std::pair{5376, 10576}}) {
              for (std::int64_t ntokens : {1, 512}) {
                out.push_back(measure(ntokens, channels, row, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
