#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/ssd_step/ref.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder::bench {
namespace {

struct Shape {
  const char* model;
  std::int64_t nheads;
  std::int64_t headdim;
  std::int64_t dstate;
};

constexpr Shape kShapes[] = {
    {"books-11m", 12, 64, 64}, {"mamba2-130m", 24, 64, 128}, {"mamba2-2.7b", 80, 64, 128}};

Measurement measure(const Shape& shape, std::int64_t batch, ThreadPool& pool, double min_seconds) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  const auto normals = [&](std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& v : values) v = normal(engine);
    return values;
  };
  const auto x = normals(batch * shape.nheads * shape.headdim);
  const std::vector<float> dt(static_cast<std::size_t>(batch * shape.nheads), 0.1F);
  const std::vector<float> A(static_cast<std::size_t>(shape.nheads), -0.5F);
  const auto B = normals(batch * shape.dstate);
  const auto C = normals(batch * shape.dstate);
  const auto D = normals(shape.nheads);
  auto state = normals(batch * shape.nheads * shape.headdim * shape.dstate);
  std::vector<float> y(x.size());
  SsdStepArgs args;
  args.x = ConstTensorView::of(x.data(), {batch, shape.nheads, shape.headdim});
  args.dt = ConstTensorView::of(dt.data(), {batch, shape.nheads});
  args.A = ConstTensorView::of(A.data(), {shape.nheads});
  args.B = ConstTensorView::of(B.data(), {batch, 1, shape.dstate});
  args.C = ConstTensorView::of(C.data(), {batch, 1, shape.dstate});
  args.D = ConstTensorView::of(D.data(), {shape.nheads});
  args.state = TensorView::of(state.data(), {batch, shape.nheads, shape.headdim, shape.dstate});
  args.y = TensorView::of(y.data(), {batch, shape.nheads, shape.headdim});

  // The first head against the definition.
  const auto doubles = [](const std::vector<float>& v, std::int64_t n) {
    return std::vector<double>(v.begin(), v.begin() + n);
  };
  auto state64 = doubles(state, shape.headdim * shape.dstate);
  std::vector<double> truth(static_cast<std::size_t>(shape.headdim));
  ref::ssd_step_head<double>(static_cast<double>(dt[0]), static_cast<double>(A[0]),
                             doubles(x, shape.headdim), doubles(B, shape.dstate),
                             doubles(C, shape.dstate), doubles(D, 1), state64, truth);
  cpu::ssd_step(args, pool);
  Measurement out;
  out.shape = fmt::format("{}: batch {}, {} heads of {}, dstate {}", shape.model, batch,
                          shape.nheads, shape.headdim, shape.dstate);
  double sum_of_squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    out.error = std::max(out.error, std::abs(truth[i] - static_cast<double>(y[i])));
    sum_of_squares += truth[i] * truth[i];
  }
  out.error /= std::sqrt(sum_of_squares / static_cast<double>(truth.size()));
  out.allowed_error = 1e-5;
  require_accuracy("ssd_step", out.shape, out.error, out.allowed_error);

  const auto elements = static_cast<double>(state.size());
  out.flops = 6 * elements;
  out.bytes = 8 * elements;
  out.timing = time_calls([&] { cpu::ssd_step(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark ssd_step_benchmark() {
  return {.name = "ssd_step",
          .description = "state-space dual of Mamba-2, one token",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (const Shape& shape : kShapes) {
              for (std::int64_t batch : {1, 8}) {
                out.push_back(measure(shape, batch, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
