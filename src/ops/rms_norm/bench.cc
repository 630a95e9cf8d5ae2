#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/rms_norm/ref.h"
#include "ops/rms_norm/rms_norm.h"

namespace adder::bench {
namespace {

Measurement measure(std::int64_t ntokens, std::int64_t d_model, ThreadPool& pool,
                    double min_seconds) {
  const auto count = static_cast<std::size_t>(ntokens * d_model);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> residual(count);
  std::vector<float> weight(static_cast<std::size_t>(d_model));
  std::generate(residual.begin(), residual.end(), [&] { return normal(engine); });
  std::generate(weight.begin(), weight.end(), [&] { return normal(engine); });
  const std::vector<float> x(count, 0.0F);  // zero, so that repeated calls see the same input
  std::vector<float> y(count);
  const RmsNormArgs args{.residual = TensorView::of(residual.data(), {ntokens, d_model}),
                         .x = ConstTensorView::of(x.data(), {ntokens, d_model}),
                         .weight = ConstTensorView::of(weight.data(), {d_model}),
                         .y = TensorView::of(y.data(), {ntokens, d_model})};
  cpu::rms_norm(args, pool);

  Measurement out;
  out.shape = fmt::format("ntokens {}, d_model {}", ntokens, d_model);
  out.allowed_error = 1e-5;
  std::vector<double> row(residual.begin(), residual.begin() + d_model);
  const std::vector<double> weight64(weight.begin(), weight.end());
  std::vector<double> truth(row.size());
  ref::rms_norm_row<double>(row, {}, weight64, 1e-5, truth);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    out.error = std::max(out.error, std::abs(truth[i] - static_cast<double>(y[i])));
  }
  require_accuracy("rms_norm", out.shape, out.error, out.allowed_error);

  out.bytes = 4.0 * 4.0 * static_cast<double>(count);
  out.flops = 5.0 * static_cast<double>(count);
  out.timing = time_calls([&] { cpu::rms_norm(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark rms_norm_benchmark() {
  return {.name = "rms_norm",
          .description = "root-mean-square norm with residual addition",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (std::int64_t d_model : {384, 768, 2560}) {
              for (std::int64_t ntokens : {1, 512}) {
                out.push_back(measure(ntokens, d_model, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
