#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

inline constexpr int kStepChannels = 64;

/// Adjacent channels of one sequence and one group; pointers are to the first of them.
struct StepSpan {
  int nchannels;  ///< at most kStepChannels
  std::int64_t dstate;
  const float* x;
  const float* dt;
  const float* z;        ///< may be null
  const float* D;        ///< may be null
  const float* dt_bias;  ///< may be null
  const float* A;
  std::int64_t A_stride;
  const float* B;
  const float* C;
  float* state;
  std::int64_t state_stride;
  float* y;
  bool dt_softplus;
};

struct SelectiveScanStepKernels {
  void (*step)(const StepSpan& span);
};

ADDER_TIERED_KERNELS(SelectiveScanStepKernels, selective_scan_step_kernels)

}  // namespace adder::cpu
