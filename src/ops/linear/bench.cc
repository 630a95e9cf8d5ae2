#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "core/cpu_tier.h"
#include "core/half.h"
#include "ops/linear/linear.h"
#include "ops/linear/ref.h"

namespace adder::bench {
namespace {

struct Shape {
  std::int64_t in_features;
  std::int64_t out_features;
};

// The projections and the vocabulary heads of Mamba-2 models of 11M and 130M parameters.
constexpr Shape kShapes[] = {{384, 1676}, {768, 384},  {384, 4096},
                             {768, 3352}, {1536, 768}, {768, 50288}};

// Largest error over the outputs of the first and last token, relative to the rms of the truth;
// of a wide layer 64 outputs from each end. A tier that rounds x owes what follows from rounded x.
double error_of(const std::vector<float>& x, const cpu::PackedLinear& weight,
                const std::vector<float>& y) {
  const auto in = static_cast<std::size_t>(weight.in_features());
  const auto out = static_cast<std::size_t>(weight.out_features());
  double worst = 0;
  double squares = 0;
  std::int64_t count = 0;
  std::vector<float> row(in);
  for (std::size_t o = 0; o < out; ++o) {
    if (o >= 64 && o + 64 < out) continue;
    weight.unpack_row(static_cast<std::int64_t>(o), row);
    const std::vector<double> row64(row.begin(), row.end());
    for (const std::size_t token : {std::size_t{0}, x.size() / in - 1}) {
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(token * in);
      std::vector<double> x64(first, first + weight.in_features());
      if (weight.dtype() == DType::bf16 && multiplies_bf16(active_cpu_tier())) {
        for (double& v : x64) v = to_float(to_bf16(static_cast<float>(v)));
      }
      double truth = 0;
      ref::linear_row<double>(x64, row64, {}, std::span(&truth, 1));
      worst = std::max(worst, std::abs(truth - static_cast<double>(y[token * out + o])));
      squares += truth * truth;
      ++count;
    }
  }
  return worst / std::sqrt(squares / static_cast<double>(count));
}

Measurement measure(Shape shape, const std::vector<float>& source, DType dtype,
                    std::int64_t ntokens, ThreadPool& pool, double min_seconds) {
  const cpu::PackedLinear weight = cpu::pack_linear(
      ConstTensorView::of(source.data(), {shape.out_features, shape.in_features}), dtype, pool);
  std::mt19937 engine(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(ntokens * shape.in_features));
  std::generate(x.begin(), x.end(), [&] { return normal(engine); });
  std::vector<float> y(static_cast<std::size_t>(ntokens * shape.out_features));
  const LinearArgs args{.x = ConstTensorView::of(x.data(), {ntokens, shape.in_features}),
                        .bias = {},
                        .y = TensorView::of(y.data(), {ntokens, shape.out_features}),
                        .round_inputs = true};
  cpu::linear(args, weight, pool);

  Measurement out;
  out.shape = fmt::format("ntokens {}, in_features {}, out_features {}, {}", ntokens,
                          shape.in_features, shape.out_features, name_of(dtype));
  out.allowed_error = 1e-5;
  out.error = error_of(x, weight, y);
  require_accuracy("linear", out.shape, out.error, out.allowed_error);
  out.bytes = static_cast<double>(weight.bytes()) + 4.0 * static_cast<double>(x.size() + y.size());
  out.flops = 2.0 * static_cast<double>(x.size()) * static_cast<double>(shape.out_features);
  out.timing = time_calls([&] { cpu::linear(args, weight, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark linear_benchmark() {
  return {.name = "linear",
          .description = "linear layer over a packed weight",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (const Shape& shape : kShapes) {
              std::mt19937 engine(1);
              std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
              std::vector<float> source(
                  static_cast<std::size_t>(shape.in_features * shape.out_features));
              std::generate(source.begin(), source.end(), [&] { return uniform(engine); });
              for (DType dtype : {DType::f32, DType::bf16}) {
                for (std::int64_t ntokens : {1, 512}) {
                  out.push_back(measure(shape, source, dtype, ntokens, pool, min_seconds));
                }
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
