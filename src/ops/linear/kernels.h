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

  /// By the dtype that the weight is stored in.
  Multiply multiply(float) const { return multiply_f32; }
  Multiply multiply(bf16) const { return multiply_bf16; }
  Multiply multiply(f16) const { return multiply_f16; }
};

ADDER_TIERED_KERNELS(LinearKernels, linear_kernels)

}  // namespace adder::cpu
