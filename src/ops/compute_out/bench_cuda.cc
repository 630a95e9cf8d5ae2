#include <algorithm>

#include "bench/device_benchmark.h"
#include "ops/compute_out/compute_out.h"
#include "ops/compute_out/ref.h"
#include "ops/fwd_pass_state/bench_device.h"

namespace adder::bench {
namespace {

// Memory of one call, with D, and states as fwd_pass_state makes them.
struct Tensors {
  DeviceChunks in;
  Tensor states, D, y;

  Tensors(const DeviceChunkShape& s, std::uint64_t seed)
      : in(s, seed),
        states(DeviceChunks::empty_states(s)),
        D(device_normals(DType::f32, {s.nheads}, 8 * seed + 5)),
        y(device_poison(s.dtype, {s.batch, s.seqlen, s.nheads, s.headdim})) {
    cuda::fwd_pass_state(in.state_args(s, states), nullptr);
  }

  ComputeOutArgs args(const DeviceChunkShape& s) const {
    return {.x = in.x.view,
            .B = in.B.view,
            .C = in.C.view,
            .dt = in.dt.view,
            .dA_cumsum = in.dA_cumsum.view,
            .states = states.view,
            .D = D.view,
            .z = {},
            .allow_tf32 = s.allow_tf32,
            .plan = in.plan,
            .y = y.view};
  }
};

// Of one head's outputs in one chunk.
double error_of(const DeviceChunkShape& s, const Tensors& tensors, std::int64_t head,
                std::int64_t chunk) {
  const ComputeOutArgs args = tensors.args(s);
  const auto rows = [&](const ConstTensorView& tokens, std::int64_t column, std::int64_t count) {
    return to_doubles(DeviceChunks::rows(s, tokens, column, chunk, count));
  };
  const auto truth = ref::compute_out_chunk<double>(
      tensors.in.sums(head, chunk), tensors.in.steps(head, chunk), rows(args.x, head, s.headdim),
      rows(args.B, 0, s.dstate), rows(args.C, 0, s.dstate),
      to_doubles(read_rows(args.D.unsqueeze0().narrow(1, head, 1), 0, 1)), {},
      to_doubles(DeviceChunks::state_rows(s, args.states, head, chunk, s.headdim)));
  return relative_error(DeviceChunks::rows(s, args.y, head, chunk, s.headdim), truth);
}

DeviceCase case_of(const DeviceChunkShape& s) {
  const auto tokens = static_cast<double>(s.ntokens());
  const auto heads = static_cast<double>(s.nheads);
  const auto P = static_cast<double>(s.headdim);
  const auto N = static_cast<double>(s.dstate);
  const auto chunk = static_cast<double>(s.kChunk);
  return {.shape = describe(s),
          .bytes = static_cast<double>(size_of(s.dtype)) * tokens * (2 * heads * P + 2 * N) +
                   12.0 * tokens * heads + 4.0 * tokens / chunk * heads * N * P,
          .flops = tokens * (chunk * N + heads * P * (chunk + 2 * N)),
          .allowed_error = s.allowed_error(),
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::compute_out(tensors.args(s), stream); },
                .error =
                    [=] {
                      return std::max(error_of(s, tensors, 0, 0),
                                      error_of(s, tensors, s.nheads - 1, s.nchunks() - 1));
                    }};
          }};
}

}  // namespace

DeviceOpBenchmark compute_out_device_benchmark() {
  DeviceOpBenchmark out{.name = "compute_out",
                        .description = "outputs of the state-space dual from states and chunks",
                        .cases = {}};
  for (const DeviceChunkShape& s : device_chunk_shapes()) out.cases.push_back(case_of(s));
  return out;
}

}  // namespace adder::bench
