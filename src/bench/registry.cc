#include "bench/op_benchmark.h"

namespace adder::bench {

// Defined in src/ops/<op>/bench.cc.
OpBenchmark rms_norm_benchmark();
OpBenchmark embedding_benchmark();
OpBenchmark linear_benchmark();
OpBenchmark quantized_linear_benchmark();
OpBenchmark gated_rms_norm_benchmark();
OpBenchmark swiglu_benchmark();
OpBenchmark causal_conv1d_benchmark();
OpBenchmark selective_scan_benchmark();
OpBenchmark selective_scan_step_benchmark();
OpBenchmark ssd_forward_benchmark();
OpBenchmark ssd_step_benchmark();
OpBenchmark chunk_cumsum_benchmark();
OpBenchmark fwd_pass_state_benchmark();
OpBenchmark compute_out_benchmark();
OpBenchmark sampling_benchmark();

std::vector<OpBenchmark> op_benchmarks() {
  // One operation a line.
  // clang-format off
  return {
      rms_norm_benchmark(),
      embedding_benchmark(),
      linear_benchmark(),
      quantized_linear_benchmark(),
      gated_rms_norm_benchmark(),
      swiglu_benchmark(),
      causal_conv1d_benchmark(),
      selective_scan_benchmark(),
      selective_scan_step_benchmark(),
      ssd_forward_benchmark(),
      ssd_step_benchmark(),
      chunk_cumsum_benchmark(),
      fwd_pass_state_benchmark(),
      compute_out_benchmark(),
      sampling_benchmark(),
  };
  // clang-format on
}

}  // namespace adder::bench
