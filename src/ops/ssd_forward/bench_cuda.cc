#include <vector>

#include "bench/device_benchmark.h"
#include "ops/ssd_forward/bench_device.h"

namespace adder::bench {
namespace {

DeviceCase case_of(const SsdDeviceShape& device_shape) {
  const cuda::SsdForwardShape& s = device_shape.shape;
  const auto tokens = static_cast<double>(s.batch * s.seqlen);
  const auto heads = static_cast<double>(s.nheads);
  const auto P = static_cast<double>(s.headdim);
  const auto N = static_cast<double>(s.dstate);
  constexpr double kChunk = 128;  // for which the products inside chunks and with states balance
  return {.shape = device_shape.name(),
          .bytes = ssd_bytes(s),
          .flops = tokens * (kChunk * N + heads * kChunk * P + 4 * heads * N * P),
          .allowed_error = device_shape.allowed_error(),
          .prepare = [device_shape](std::uint64_t seed) {
            const SsdOnDevice tensors(device_shape, seed);
            const SsdForwardArgs args = tensors.args();
            const auto [choice, tuned] = cuda::choose_ssd_forward(args);
            const Tensor workspace = ssd_workspace(cuda::ssd_forward_workspace_bytes(args, choice));
            return DeviceWork{.call =
                                  [args, workspace, tensors](cuda::Stream stream) {
                                    cuda::ssd_forward(args, bytes_of(workspace), stream);
                                  },
                              .error = [tensors] { return tensors.error(); },
                              .choice = describe(choice),
                              .tuned = tuned};
          }};
}

}  // namespace

DeviceOpBenchmark ssd_forward_device_benchmark() {
  DeviceOpBenchmark out{.name = "ssd_forward",
                        .description = "state-space dual of Mamba-2 over a prompt",
                        .cases = {}};
  for (const SsdDeviceShape& shape : ssd_device_shapes()) out.cases.push_back(case_of(shape));
  return out;
}

}  // namespace adder::bench
