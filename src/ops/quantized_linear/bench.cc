#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "bench/op_benchmark.h"
#include "core/tensor.h"
#include "ops/quantized_linear/quantized_linear.h"

namespace adder::bench {
namespace {

struct Shape {
  std::int64_t in_features;
  std::int64_t out_features;
};

// Projections and vocabulary heads of Mamba-2 models of 11M and 130M parameters.
constexpr Shape kShapes[] = {{384, 1676}, {768, 3352}, {1536, 768}, {768, 50288}};

// Largest error of the first token's first 64 outputs, relative to their rms: the rounding of
// inputs to 8 bits, since the weight is taken as it is held.
double error_of(const std::vector<float>& x, const QuantizedMatrix& weight,
                const std::vector<float>& y) {
  std::vector<float> row(static_cast<std::size_t>(weight.columns()));
  double worst = 0;
  double squares = 0;
  constexpr int kRows = 64;
  for (int o = 0; o < kRows; ++o) {
    weight.unpack_row(o, row);
    double truth = 0;
    for (std::size_t i = 0; i < row.size(); ++i) truth += double{row[i]} * x[i];
    worst = std::max(worst, std::abs(truth - static_cast<double>(y[static_cast<std::size_t>(o)])));
    squares += truth * truth;
  }
  return worst / std::sqrt(squares / kRows);
}

Measurement measure(Shape shape, const QuantizedMatrix& weight, std::int64_t ntokens,
                    ThreadPool& pool, double min_seconds) {
  std::mt19937 engine(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(ntokens * shape.in_features));
  std::generate(x.begin(), x.end(), [&] { return normal(engine); });
  std::vector<float> y(static_cast<std::size_t>(ntokens * shape.out_features));
  const LinearArgs args{.x = ConstTensorView::of(x.data(), {ntokens, shape.in_features}),
                        .bias = {},
                        .y = TensorView::of(y.data(), {ntokens, shape.out_features})};
  const std::size_t bytes = cpu::quantized_linear_workspace_bytes(args, weight);
  const std::shared_ptr<std::byte> workspace = allocate_host(bytes);
  const auto call = [&] { cpu::quantized_linear(args, weight, {workspace.get(), bytes}, pool); };
  call();

  Measurement out;
  out.shape = fmt::format("ntokens {}, in_features {}, out_features {}, {}", ntokens,
                          shape.in_features, shape.out_features, name_of(weight.format()));
  out.allowed_error = 0.04;
  out.error = error_of(x, weight, y);
  require_accuracy("quantized_linear", out.shape, out.error, out.allowed_error);
  out.bytes = static_cast<double>(weight.bytes()) + 4.0 * static_cast<double>(x.size() + y.size());
  out.flops = 2.0 * static_cast<double>(x.size()) * static_cast<double>(shape.out_features);
  out.timing = time_calls(call, min_seconds);
  return out;
}

}  // namespace

OpBenchmark quantized_linear_benchmark() {
  return {.name = "quantized_linear",
          .description = "linear layer over a weight in 8 or 4 bits",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (const Shape& shape : kShapes) {
              std::mt19937 engine(1);
              std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
              std::vector<float> source(
                  static_cast<std::size_t>(shape.in_features * shape.out_features));
              std::generate(source.begin(), source.end(), [&] { return uniform(engine); });
              for (WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
                const QuantizedMatrix weight = cpu::quantize_linear(
                    ConstTensorView::of(source.data(), {shape.out_features, shape.in_features}),
                    format, {}, "weight", pool);
                for (std::int64_t ntokens : {1, 512}) {
                  out.push_back(measure(shape, weight, ntokens, pool, min_seconds));
                }
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
