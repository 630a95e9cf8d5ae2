#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

struct SwigluKernels {
  /// y[i] = x[i] · silu(gate[i]) for n elements; y may be x or gate.
  void (*gate)(const float* x, const float* gate, float* y, std::int64_t n);
};

ADDER_TIERED_KERNELS(SwigluKernels, swiglu_kernels)

}  // namespace adder::cpu
