#include <algorithm>
#include <cmath>

#include "bench/op_benchmark.h"
#include "ops/ssd_forward/bench_case.h"
#include "ops/ssd_forward/ref.h"

namespace adder::bench {
namespace {

// The largest error of the first head's y, relative to the root mean square of its values.
double error_of_first_head(const SsdForwardArgs& args) {
  SsdForwardArgs head = args;
  head.x = args.x.narrow(2, 0, 1);
  head.dt = args.dt.narrow(2, 0, 1);
  head.A = args.A.narrow(0, 0, 1);
  head.D = args.D.narrow(0, 0, 1);
  head.dt_bias = args.dt_bias.narrow(0, 0, 1);
  const auto truth = ref::ssd_forward<double>(head).y;
  const std::int64_t headdim = args.x.dim(3);
  double error = 0;
  double sum_of_squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const auto t = static_cast<std::int64_t>(i) / headdim;
    const auto p = static_cast<std::int64_t>(i) % headdim;
    const auto got = static_cast<double>(args.y.as<float>()[t * args.y.stride(1) + p]);
    error = std::max(error, std::abs(got - truth[i]));
    sum_of_squares += truth[i] * truth[i];
  }
  return error / std::sqrt(sum_of_squares / static_cast<double>(truth.size()));
}

Measurement measure(const SsdShape& shape, std::int64_t seqlen, ThreadPool& pool,
                    double min_seconds) {
  const SsdInputs inputs(shape, seqlen);
  const SsdForwardArgs& args = inputs.args;
  std::vector<std::byte> workspace(cpu::ssd_forward_workspace_bytes(args, pool.nthreads()));
  cpu::ssd_forward(args, workspace, pool);

  Measurement out;
  out.shape = describe(shape, "seqlen", seqlen);
  out.error = error_of_first_head(args);
  out.allowed_error = 1e-5;
  require_accuracy("ssd_forward", out.shape, out.error, out.allowed_error);

  // The causal algorithm with chunks of 64: products with the state, inside the chunk, and C·Bᵀ.
  const auto tokens = static_cast<double>(seqlen);
  const double chunk = std::min(64.0, tokens);
  const auto heads = static_cast<double>(shape.nheads);
  const auto headdim = static_cast<double>(shape.headdim);
  const auto dstate = static_cast<double>(shape.dstate);
  out.flops = tokens * (heads * (4 * headdim * dstate + chunk * headdim) + chunk * dstate);
  out.bytes = 4 * (tokens * (heads * (2 * headdim + 1) + 2 * dstate) + heads * headdim * dstate);
  out.timing = time_calls([&] { cpu::ssd_forward(args, workspace, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark ssd_forward_benchmark() {
  return {.name = "ssd_forward",
          .description = "state-space dual of Mamba-2 over a prompt",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (const SsdShape& shape : kSsdShapes) {
              for (std::int64_t seqlen : {64, 512}) {
                out.push_back(measure(shape, seqlen, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
