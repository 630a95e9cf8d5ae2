#pragma once

#include <cstdint>

#include "adder/dtype.h"
#include "core/cpu_tier.h"

namespace adder::cpu {

/// All tokens of x against the panels [panel_begin, panel_end) of a packed weight. Strides and
/// panel_elements count elements.
struct LinearWork {
  const float* x;
  std::int64_t x_stride;
  std::int64_t ntokens;
  std::int64_t in_features;
  const void* weights;  ///< panel 0
  std::int64_t panel_elements;
  std::int64_t panels;  ///< that there are: the next ones are fetched meanwhile
  std::int64_t panel_begin;
  std::int64_t panel_end;
  const float* bias;  ///< of output 0, or null
  float* y;           ///< of output 0
  std::int64_t y_stride;
  std::int64_t out_features;
};

/// Inputs that many tokens are multiplied with before the next ones come.
inline constexpr std::int64_t kLinearInputBlock = 768;

struct LinearKernels {
  using Multiply = void (*)(const LinearWork&);
  Multiply multiply_f32;
  Multiply multiply_bf16;
  Multiply multiply_f16;
};

ADDER_TIERED_KERNELS(LinearKernels, linear_kernels)

// bf16 weights times x rounded to bf16, in the tiers that multiply bf16 numbers.
#if defined(ADDER_TIERS_X86)
namespace tier_avx512bf16 {
void multiply_rounded(const LinearWork&);
}
namespace tier_amx {
void multiply_rounded(const LinearWork&);
}
namespace tier_amx_emulated {  // for tests
void multiply_rounded(const LinearWork&);
}
#elif defined(ADDER_TIERS_ARM)
namespace tier_i8mm {
void multiply_rounded(const LinearWork&);
}
#endif

/// The active tier's kernel for bf16 weights and x that may be rounded to bf16.
inline LinearKernels::Multiply multiply_rounded() {
  switch (active_cpu_tier()) {
#if defined(ADDER_TIERS_X86)
    case CpuTier::avx512bf16:
      return tier_avx512bf16::multiply_rounded;
    case CpuTier::amx:
      return tier_amx::multiply_rounded;
#elif defined(ADDER_TIERS_ARM)
    case CpuTier::i8mm:
      return tier_i8mm::multiply_rounded;
#endif
    default:
      return linear_kernels().multiply_bf16;
  }
}

}  // namespace adder::cpu
