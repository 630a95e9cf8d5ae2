#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "bench/op_benchmark.h"
#include "ops/selective_scan_step/ref.h"
#include "ops/selective_scan_step/selective_scan_step.h"

namespace adder::bench {
namespace {

using Span64 = std::span<const double>;

void expected_y(std::span<const float> x, std::span<const float> dt, std::span<const float> A,
                std::span<const float> B, std::span<const float> C, std::span<const float> D,
                std::span<const float> z, std::span<const float> state, std::span<double> y) {
  std::vector<double> widened;  // all tensors one after another
  for (const auto& tensor : {x, dt, A, B, C, D, z, state}) {
    widened.insert(widened.end(), tensor.begin(), tensor.end());
  }
  std::size_t at = 0;
  const auto next = [&](std::size_t n) {
    at += n;
    return std::span(widened).subspan(at - n, n);
  };
  const Span64 x64 = next(x.size()), dt64 = next(dt.size()), A64 = next(A.size());
  const Span64 B64 = next(B.size()), C64 = next(C.size()), D64 = next(D.size());
  const Span64 z64 = next(z.size());
  ref::selective_scan_step<double>(x64, dt64, A64, B64, C64, D64, z64, {}, true, B.size(),
                                   next(state.size()), y);
}

Measurement measure(std::int64_t d_inner, std::int64_t dstate, ThreadPool& pool,
                    double min_seconds) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t n) {
    std::vector<float> v(static_cast<std::size_t>(n));
    std::generate(v.begin(), v.end(), [&] { return normal(engine); });
    return v;
  };
  const auto x = random(d_inner), dt = random(d_inner), z = random(d_inner), D = random(d_inner),
             B = random(dstate), C = random(dstate);
  auto A = random(d_inner * dstate);
  for (float& v : A) v = -std::abs(v) - 0.5F;
  std::vector<float> state = random(d_inner * dstate);
  std::vector<float> y(x.size());
  std::vector<double> truth(y.size());
  expected_y(x, dt, A, B, C, D, z, state, truth);
  const auto row = [&](const std::vector<float>& v) {
    return ConstTensorView::of(v.data(), {1, d_inner});
  };
  const SelectiveScanStepArgs args{.x = row(x),
                                   .dt = row(dt),
                                   .A = ConstTensorView::of(A.data(), {d_inner, dstate}),
                                   .B = ConstTensorView::of(B.data(), {1, 1, dstate}),
                                   .C = ConstTensorView::of(C.data(), {1, 1, dstate}),
                                   .D = ConstTensorView::of(D.data(), {d_inner}),
                                   .z = row(z),
                                   .state = TensorView::of(state.data(), {1, d_inner, dstate}),
                                   .y = TensorView::of(y.data(), {1, d_inner})};
  cpu::selective_scan_step(args, pool);

  Measurement out;
  out.shape = fmt::format("batch 1, d_inner {}, dstate {}", d_inner, dstate);
  out.allowed_error = 1e-4;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    out.error = std::max(out.error, std::abs(truth[i] - static_cast<double>(y[i])));
  }
  require_accuracy("selective_scan_step", out.shape, out.error, out.allowed_error);
  const auto states = static_cast<double>(d_inner * dstate);
  out.bytes = 12.0 * states + 20.0 * static_cast<double>(d_inner);
  // An exponential counts as 16: its multiplications and additions.
  out.flops = 22.0 * states + 60.0 * static_cast<double>(d_inner);
  out.timing = time_calls([&] { cpu::selective_scan_step(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark selective_scan_step_benchmark() {
  return {.name = "selective_scan_step",
          .description = "one token of the selective scan of Mamba-1",
          .run = [](ThreadPool& pool, double min_seconds) {
            return std::vector<Measurement>{
                measure(1536, 16, pool, min_seconds),  // mamba-130m
                measure(5120, 16, pool, min_seconds),  // mamba-2.8b
            };
          }};
}

}  // namespace adder::bench
