#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

struct RmsNormKernels {
  /// One row of d_model floats; `x` and `weight` may be null (see RmsNormArgs).
  void (*row)(float* residual, const float* x, const float* weight, float epsilon, float* y,
              std::int64_t d_model);
};

ADDER_TIERED_KERNELS(RmsNormKernels, rms_norm_kernels)

}  // namespace adder::cpu
