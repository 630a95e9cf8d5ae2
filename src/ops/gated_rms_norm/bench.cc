#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/gated_rms_norm/ref.h"

namespace adder::bench {
namespace {

Measurement measure(std::int64_t ntokens, std::int64_t d_inner, ThreadPool& pool,
                    double min_seconds) {
  const auto count = static_cast<std::size_t>(ntokens * d_inner);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  const auto random = [&](std::size_t n) {
    std::vector<float> v(n);
    std::generate(v.begin(), v.end(), [&] { return normal(engine); });
    return v;
  };
  const std::vector<float> y = random(count);
  const std::vector<float> z = random(count);
  const std::vector<float> weight = random(static_cast<std::size_t>(d_inner));
  std::vector<float> result(count);
  const GatedRmsNormArgs args{.y = ConstTensorView::of(y.data(), {ntokens, d_inner}),
                              .z = ConstTensorView::of(z.data(), {ntokens, d_inner}),
                              .weight = ConstTensorView::of(weight.data(), {d_inner}),
                              .out = TensorView::of(result.data(), {ntokens, d_inner})};
  cpu::gated_rms_norm(args, pool);

  Measurement out;
  out.shape = fmt::format("ntokens {}, d_inner {}", ntokens, d_inner);
  out.allowed_error = 1e-5;
  const std::vector<double> y64(y.begin(), y.begin() + d_inner);
  const std::vector<double> z64(z.begin(), z.begin() + d_inner);
  const std::vector<double> weight64(weight.begin(), weight.end());
  std::vector<double> truth(y64.size());
  ref::gated_rms_norm_row<double>(y64, z64, weight64, 1, 1e-5, false, true, truth);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    out.error = std::max(out.error, std::abs(truth[i] - static_cast<double>(result[i])));
  }
  require_accuracy("gated_rms_norm", out.shape, out.error, out.allowed_error);
  out.bytes = 12.0 * static_cast<double>(count);
  out.flops = 25.0 * static_cast<double>(count);
  out.timing = time_calls([&] { cpu::gated_rms_norm(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark gated_rms_norm_benchmark() {
  return {.name = "gated_rms_norm",
          .description = "gate and grouped root-mean-square norm",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (std::int64_t d_inner : {1536, 5120}) {
              for (std::int64_t ntokens : {1, 512}) {
                out.push_back(measure(ntokens, d_inner, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
