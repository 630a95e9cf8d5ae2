#include <algorithm>

#include "bench/device_benchmark.h"
#include "ops/fwd_pass_state/bench_device.h"
#include "ops/fwd_pass_state/ref.h"

namespace adder::bench {
namespace {

// Memory of one call.
struct Tensors {
  DeviceChunks in;
  Tensor states, final_states;

  Tensors(const DeviceChunkShape& s, std::uint64_t seed)
      : in(s, seed),
        states(DeviceChunks::empty_states(s)),
        final_states(device_poison(DType::f32, {s.batch, s.nheads, s.headdim, s.dstate})) {}

  FwdPassStateArgs args(const DeviceChunkShape& s) const {
    FwdPassStateArgs out = in.state_args(s, states);
    out.final_states = final_states.view;
    return out;
  }
};

// Of the state before the last chunk of a row and of the final one: of two channels, for which the
// definition takes a moment, however long the sequence.
double error_of(const DeviceChunkShape& s, const Tensors& tensors, std::int64_t row,
                std::int64_t head) {
  constexpr std::int64_t kChannels = 2;
  const FwdPassStateArgs args = tensors.args(s);
  const auto rows = [&](const ConstTensorView& tokens, std::int64_t column, std::int64_t chunk,
                        std::int64_t count) {
    return to_doubles(DeviceChunks::rows(s, tokens, column, chunk, count));
  };
  const std::int64_t first = row * s.chunks_per_row();
  const std::int64_t last = first + s.chunks_per_row() - 1;
  std::vector<double> state(static_cast<std::size_t>(kChannels * s.dstate));
  double error = 0;
  for (std::int64_t chunk = first; chunk <= last; ++chunk) {
    if (chunk == last && chunk > first) {
      error =
          relative_error(DeviceChunks::state_rows(s, args.states, head, chunk, kChannels), state);
    }
    ref::fwd_pass_state_chunk<double>(tensors.in.sums(head, chunk), tensors.in.steps(head, chunk),
                                      rows(args.x, head, chunk, kChannels),
                                      rows(args.B, 0, chunk, s.dstate), state);
  }
  const ConstTensorView of_head = ConstTensorView(args.final_states)[row][head];
  return std::max(error,
                  relative_error(read_rows(of_head, s.headdim - kChannels, kChannels), state));
}

DeviceCase case_of(const DeviceChunkShape& s) {
  const auto tokens = static_cast<double>(s.ntokens());
  const auto heads = static_cast<double>(s.nheads);
  const auto P = static_cast<double>(s.headdim);
  const auto N = static_cast<double>(s.dstate);
  const double states = static_cast<double>(s.nchunks() + s.batch) * heads * N * P;
  return {.shape = describe(s),
          .bytes = static_cast<double>(size_of(s.dtype)) * tokens * (heads * P + N) +
                   12.0 * tokens * heads + 4.0 * states,
          .flops = 2.0 * tokens * heads * N * P,
          .allowed_error = s.allowed_error(),
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::fwd_pass_state(tensors.args(s), stream); },
                .error =
                    [=] {
                      return std::max(error_of(s, tensors, 0, 0),
                                      error_of(s, tensors, s.batch - 1, s.nheads - 1));
                    }};
          }};
}

}  // namespace

DeviceOpBenchmark fwd_pass_state_device_benchmark() {
  DeviceOpBenchmark out{.name = "fwd_pass_state",
                        .description = "states of the state-space dual between chunks",
                        .cases = {}};
  for (const DeviceChunkShape& s : device_chunk_shapes()) out.cases.push_back(case_of(s));
  return out;
}

}  // namespace adder::bench
