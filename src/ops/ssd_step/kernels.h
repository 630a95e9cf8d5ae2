#pragma once

#include <cstdint>

#include "adder/dtype.h"
#include "core/cpu_tier.h"

namespace adder::cpu {

/// One head of one sequence.
struct SsdStepHead {
  std::int64_t headdim;
  std::int64_t dstate;
  float dt;  ///< after softplus and clamp
  float A;
  const float* D;  ///< one value, or headdim values; null means none
  bool D_has_headdim;
  const void* x;  ///< (headdim) of `dtype`
  const void* B;  ///< (dstate)
  const void* C;  ///< (dstate)
  const void* z;  ///< (headdim); null means none
  void* y;        ///< (headdim)
  DType dtype;
  float* state;  ///< (headdim, dstate)
  std::int64_t state_stride;
};

struct SsdStepKernels {
  void (*head)(const SsdStepHead& head);
};

ADDER_TIERED_KERNELS(SsdStepKernels, ssd_step_kernels)

}  // namespace adder::cpu
