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

/// Products of bf16 numbers or of bytes, with operands in registers, for `rounds` rounds of
/// `operations_per_round` multiplications and additions. `bytes` holds the numbers that are
/// multiplied. Returns something that depends on all of them.
struct ProductKernel {
  std::int32_t (*run)(std::int64_t rounds, std::int32_t bytes);
  std::int64_t operations_per_round;
};

ADDER_TIERED_KERNELS_DOT(ProductKernel, int8_kernel)

#if defined(ADDER_TIERS_X86)
namespace tier_avx512bf16 {
const ProductKernel& bf16_kernel();
}
namespace tier_amx {
const ProductKernel& bf16_kernel();
const ProductKernel& int8_kernel();
}  // namespace tier_amx
#elif defined(ADDER_TIERS_ARM)
namespace tier_i8mm {
const ProductKernel& bf16_kernel();
}
#endif

/// The active tier's for bytes.
inline const ProductKernel& int8_peak_kernel() {
#if defined(ADDER_TIERS_X86)
  if (active_cpu_tier() == CpuTier::amx) return tier_amx::int8_kernel();
#endif
  return int8_kernel();
}

/// The active tier's for bf16 numbers, or null where they are widened to f32.
inline const ProductKernel* bf16_peak_kernel() {
  switch (active_cpu_tier()) {
#if defined(ADDER_TIERS_X86)
    case CpuTier::avx512bf16:
      return &tier_avx512bf16::bf16_kernel();
    case CpuTier::amx:
      return &tier_amx::bf16_kernel();
#elif defined(ADDER_TIERS_ARM)
    case CpuTier::i8mm:
      return &tier_i8mm::bf16_kernel();
#endif
    default:
      return nullptr;
  }
}

}  // namespace adder::bench
