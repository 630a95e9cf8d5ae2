#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::bench {

/// What the arithmetic and reading kernels run on.
struct MachineKernels {
  /// Multiplies and adds in registers for `rounds` rounds of `fma_flops_per_round` operations.
  /// Returns something that depends on all of them. 0 < scale < 1 keeps the numbers finite.
  float (*fma)(std::int64_t rounds, float scale);
  std::int64_t fma_flops_per_round;
  /// Reads `n` floats once, in 8 streams side by side: the sum of the first n rounded down to a
  /// multiple of 128.
  float (*read)(const float* data, std::int64_t n);
};

ADDER_TIERED_KERNELS(MachineKernels, machine_kernels)

}  // namespace adder::bench
