#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/swiglu/ref.h"
#include "ops/swiglu/swiglu.h"

namespace adder::bench {
namespace {

Measurement measure(std::int64_t ntokens, std::int64_t d_mlp, ThreadPool& pool,
                    double min_seconds) {
  const auto count = static_cast<std::size_t>(ntokens * d_mlp);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> fc1(2 * count);
  std::generate(fc1.begin(), fc1.end(), [&] { return normal(engine); });
  std::vector<float> y(count);
  const auto rows = ConstTensorView::of(fc1.data(), {ntokens, 2 * d_mlp});
  const SwigluArgs args{.x = rows.narrow(1, 0, d_mlp),
                        .gate = rows.narrow(1, d_mlp, d_mlp),
                        .y = TensorView::of(y.data(), {ntokens, d_mlp})};
  cpu::swiglu(args, pool);

  Measurement out;
  out.shape = fmt::format("ntokens {}, d_mlp {}", ntokens, d_mlp);
  out.allowed_error = 1e-5;
  const std::vector<double> x(fc1.begin(), fc1.begin() + d_mlp);
  const std::vector<double> gate(fc1.begin() + d_mlp, fc1.begin() + 2 * d_mlp);
  std::vector<double> truth(x.size());
  ref::swiglu<double>(x, gate, truth);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    out.error = std::max(out.error, std::abs(truth[i] - static_cast<double>(y[i])));
  }
  require_accuracy("swiglu", out.shape, out.error, out.allowed_error);
  out.bytes = 12.0 * static_cast<double>(count);
  out.flops = 20.0 * static_cast<double>(count);
  out.timing = time_calls([&] { cpu::swiglu(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark swiglu_benchmark() {
  return {.name = "swiglu",
          .description = "gate of a gated MLP block",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (std::int64_t d_mlp : {1536, 5120}) {
              for (std::int64_t ntokens : {1, 512}) {
                out.push_back(measure(ntokens, d_mlp, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
