// The choices of ssd_forward, to be measured by `adder tune`.

#include <algorithm>
#include <vector>

#include "bench/device_tuner.h"
#include "ops/ssd_forward/bench_device.h"
#include "ops/ssd_forward/cuda_variants.h"

namespace adder::bench {
namespace {

DeviceTunable tunable_of(const SsdDeviceShape& device_shape) {
  return {.operation = "ssd_forward",
          .kernel_version = cuda::kSsdForwardKernelVersion,
          .shape = describe(device_shape.shape),
          .shape_key = to_json(device_shape.shape),
          .bytes = ssd_bytes(device_shape.shape),
          .allowed_error = device_shape.allowed_error(),
          .prepare = [device_shape](std::uint64_t seed) {
            const SsdOnDevice tensors(device_shape, seed);
            const SsdForwardArgs args = tensors.args();
            const auto choices = cuda::ssd_forward_candidates(args);
            TuningWork work;
            std::size_t bytes = 0;
            for (const cuda::SsdForwardChoice& choice : choices) {
              work.candidates.push_back({describe(choice), to_json(choice)});
              bytes = std::max(bytes, cuda::ssd_forward_workspace_bytes(args, choice));
            }
            const Tensor workspace = ssd_workspace(bytes);
            work.call = [args, choices, tensors, workspace](std::size_t i, cuda::Stream stream) {
              cuda::ssd_forward(args, choices[i], bytes_of(workspace), stream);
            };
            work.outputs = {args.y, args.final_states};
            work.error = [tensors] { return tensors.error(); };
            return work;
          }};
}

}  // namespace

std::vector<DeviceTunable> ssd_forward_tunables() {
  std::vector<DeviceTunable> out;
  for (const SsdDeviceShape& shape : ssd_device_shapes()) {
    if (!shape.remembers)
      out.push_back(tunable_of(shape));  // the table's key does not tell them apart
  }
  return out;
}

DeviceTunable ssd_forward_tunable(std::string_view shape) {
  return tunable_of({.shape = cuda::parse_ssd_forward_shape(shape)});
}

}  // namespace adder::bench
