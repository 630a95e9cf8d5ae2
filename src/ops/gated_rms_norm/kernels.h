#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

/// Each works on `n` adjacent channels of one token; `z` and `weight` may be null, `out` may be `y`
/// or `z` (see GatedRmsNormArgs).
struct GatedRmsNormKernels {
  /// out = rms(y · silu(z)) · weight
  void (*gate_then_norm)(const float* y, const float* z, const float* weight, float epsilon,
                         float* out, std::int64_t n);
  /// out = rms(y) · weight · silu(z)
  void (*norm_then_gate)(const float* y, const float* z, const float* weight, float epsilon,
                         float* out, std::int64_t n);
  /// out = y · silu(z)
  void (*gate)(const float* y, const float* z, float* out, std::int64_t n);
};

ADDER_TIERED_KERNELS(GatedRmsNormKernels, gated_rms_norm_kernels)

}  // namespace adder::cpu
