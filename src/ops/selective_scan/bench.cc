#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/selective_scan/ref.h"
#include "ops/selective_scan/selective_scan.h"

namespace adder::bench {
namespace {

Measurement measure(std::int64_t seqlen, std::int64_t d_inner, std::int64_t dstate,
                    ThreadPool& pool, double min_seconds) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t n) {
    std::vector<float> v(static_cast<std::size_t>(n));
    std::generate(v.begin(), v.end(), [&] { return normal(engine); });
    return v;
  };
  const auto x = random(seqlen * d_inner), dt = random(seqlen * d_inner),
             z = random(seqlen * d_inner), B = random(seqlen * dstate), C = random(seqlen * dstate),
             D = random(d_inner);
  const std::vector<float> dt_bias(static_cast<std::size_t>(d_inner), -4.0F);
  auto A = random(d_inner * dstate);
  for (float& v : A) v = -std::abs(v) - 0.5F;
  std::vector<float> states(static_cast<std::size_t>(d_inner * dstate));
  std::vector<float> y(static_cast<std::size_t>(seqlen * d_inner));
  const auto sequence = [&](const std::vector<float>& v) {
    return ConstTensorView::of(v.data(), {1, seqlen, d_inner});
  };
  const auto group = [&](const std::vector<float>& v) {
    return ConstTensorView::of(v.data(), {1, seqlen, 1, dstate});
  };
  const SelectiveScanArgs args{.x = sequence(x),
                               .dt = sequence(dt),
                               .A = ConstTensorView::of(A.data(), {d_inner, dstate}),
                               .B = group(B),
                               .C = group(C),
                               .D = ConstTensorView::of(D.data(), {d_inner}),
                               .z = sequence(z),
                               .dt_bias = ConstTensorView::of(dt_bias.data(), {d_inner}),
                               .final_states = TensorView::of(states.data(), {1, d_inner, dstate}),
                               .y = TensorView::of(y.data(), {1, seqlen, d_inner})};
  cpu::selective_scan(args, pool);

  Measurement out;
  out.shape = fmt::format("seqlen {}, d_inner {}, dstate {}", seqlen, d_inner, dstate);
  out.allowed_error = 1e-4;
  const std::vector<double> B64(B.begin(), B.end()), C64(C.begin(), C.end());
  for (std::int64_t d = 0; d < d_inner; d += d_inner / 3) {  // a few channels of the definition
    const auto column = [&](const std::vector<float>& v) {
      std::vector<double> values;
      for (std::int64_t t = 0; t < seqlen; ++t) {
        values.push_back(v[static_cast<std::size_t>(t * d_inner + d)]);
      }
      return values;
    };
    const std::vector<double> A64(A.begin() + d * dstate, A.begin() + (d + 1) * dstate);
    std::vector<double> state(A64.size()), truth(static_cast<std::size_t>(seqlen));
    ref::selective_scan<double>(
        {.A = A64, .D = D[static_cast<std::size_t>(d)], .dt_bias = -4.0, .dt_softplus = true},
        column(x), column(dt), B64, C64, column(z), {}, state, truth);
    const auto got = column(y);
    for (std::size_t t = 0; t < truth.size(); ++t) {
      out.error = std::max(out.error, std::abs(truth[t] - got[t]));
    }
  }
  require_accuracy("selective_scan", out.shape, out.error, out.allowed_error);
  const auto channels = static_cast<double>(seqlen * d_inner);
  out.bytes = 16.0 * channels + 8.0 * static_cast<double>((seqlen + d_inner) * dstate);
  // An exponential counts as 16: its multiplications and additions.
  out.flops = channels * (22.0 * static_cast<double>(dstate) + 60.0);
  out.timing = time_calls([&] { cpu::selective_scan(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark selective_scan_benchmark() {
  return {.name = "selective_scan",
          .description = "selective scan of Mamba-1",
          .run = [](ThreadPool& pool, double min_seconds) {
            return std::vector<Measurement>{
                measure(512, 1536, 16, pool, min_seconds),  // mamba-130m
                measure(512, 5120, 16, pool, min_seconds),  // mamba-2.8b
                measure(512, 1536, 64, pool, min_seconds),
            };
          }};
}

}  // namespace adder::bench
