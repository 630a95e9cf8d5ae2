#include <string_view>

#include "bench/device_benchmark.h"
#include "bench/device_tuner.h"
#include "core/check.h"

namespace adder::bench {

// Defined in src/ops/<op>/bench_cuda.cc.
DeviceOpBenchmark embedding_device_benchmark();
DeviceOpBenchmark rms_norm_device_benchmark();
DeviceOpBenchmark linear_device_benchmark();
DeviceOpBenchmark linear_step_device_benchmark();
DeviceOpBenchmark step_program_device_benchmark();
DeviceOpBenchmark causal_conv1d_device_benchmark();
DeviceOpBenchmark chunk_cumsum_device_benchmark();
DeviceOpBenchmark fwd_pass_state_device_benchmark();
DeviceOpBenchmark compute_out_device_benchmark();
DeviceOpBenchmark ssd_forward_device_benchmark();
DeviceOpBenchmark ssd_step_device_benchmark();
DeviceOpBenchmark selective_scan_device_benchmark();
DeviceOpBenchmark selective_scan_step_device_benchmark();
DeviceOpBenchmark gated_rms_norm_device_benchmark();
DeviceOpBenchmark swiglu_device_benchmark();
DeviceOpBenchmark sampling_device_benchmark();

std::vector<DeviceOpBenchmark> device_op_benchmarks() {
  // One operation a line.
  // clang-format off
  return {
      embedding_device_benchmark(),
      rms_norm_device_benchmark(),
      linear_device_benchmark(),
      linear_step_device_benchmark(),
      step_program_device_benchmark(),
      causal_conv1d_device_benchmark(),
      chunk_cumsum_device_benchmark(),
      fwd_pass_state_device_benchmark(),
      compute_out_device_benchmark(),
      ssd_forward_device_benchmark(),
      ssd_step_device_benchmark(),
      selective_scan_device_benchmark(),
      selective_scan_step_device_benchmark(),
      gated_rms_norm_device_benchmark(),
      swiglu_device_benchmark(),
      sampling_device_benchmark(),
  };
  // clang-format on
}

// Defined in src/ops/<op>/bench_tune.cc.
std::vector<DeviceTunable> ssd_forward_tunables();
DeviceTunable ssd_forward_tunable(std::string_view shape);

std::vector<DeviceTunable> device_tunables() { return ssd_forward_tunables(); }

DeviceTunable device_tunable(std::string_view operation, std::string_view shape) {
  check(operation == "ssd_forward", "tune: there is no operation '{}', expected ssd_forward",
        operation);
  return ssd_forward_tunable(shape);
}

}  // namespace adder::bench
