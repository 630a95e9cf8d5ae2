#include "bench/device_benchmark.h"

namespace adder::bench {

// Defined in src/ops/<op>/bench_cuda.cc.
DeviceOpBenchmark rms_norm_device_benchmark();
DeviceOpBenchmark gated_rms_norm_device_benchmark();
DeviceOpBenchmark causal_conv1d_device_benchmark();
DeviceOpBenchmark chunk_cumsum_device_benchmark();
DeviceOpBenchmark fwd_pass_state_device_benchmark();
DeviceOpBenchmark compute_out_device_benchmark();
DeviceOpBenchmark ssd_forward_device_benchmark();

std::vector<DeviceOpBenchmark> device_op_benchmarks() {
  // One operation a line.
  // clang-format off
  return {
      rms_norm_device_benchmark(),
      gated_rms_norm_device_benchmark(),
      causal_conv1d_device_benchmark(),
      chunk_cumsum_device_benchmark(),
      fwd_pass_state_device_benchmark(),
      compute_out_device_benchmark(),
      ssd_forward_device_benchmark(),
  };
  // clang-format on
}

}  // namespace adder::bench
