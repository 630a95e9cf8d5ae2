#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

/// x, quantized: rows of `blocks` times 32 integers, a scale for each block, and what its dot
/// products start from: the sum of its integers times the negative code for zero, counted from
/// where the tier's codes begin (kCodeOffset in dot.h).
struct QuantizedInput {
  std::int8_t* values;
  float* scales;
  std::int32_t* starts;
};

/// Tokens of x to be quantized. Rows of `to` lie one after another.
struct QuantizeWork {
  const float* x;
  std::int64_t x_stride;
  std::int64_t ntokens;
  std::int64_t in_features;
  std::int64_t blocks;
  std::int32_t zero;  ///< the code for zero
  QuantizedInput to;
};

/// All tokens of x against the panels [panel_begin, panel_end) of a quantized weight.
struct QuantizedLinearWork {
  QuantizedInput x;
  std::int64_t ntokens;
  std::int64_t blocks;
  const std::uint8_t* weights;  ///< panel 0
  std::int64_t panel_bytes;
  std::int64_t panel_begin;
  std::int64_t panel_end;
  const float* bias;  ///< of output 0, or null
  float* y;           ///< of output 0
  std::int64_t y_stride;
  std::int64_t out_features;
};

struct QuantizedLinearKernels {
  void (*quantize)(const QuantizeWork&);
  void (*multiply_int8)(const QuantizedLinearWork&);
  void (*multiply_int4)(const QuantizedLinearWork&);
};

ADDER_TIERED_KERNELS_DOT(QuantizedLinearKernels, quantized_linear_kernels)

/// Kernels for more than `few_tokens` tokens, with the same bits, in tiers that multiply matrices
/// of bytes. They do not read the starts of x.
struct QuantizedMatrixKernels {
  void (*multiply_int8)(const QuantizedLinearWork&);
  void (*multiply_int4)(const QuantizedLinearWork&);
  std::int64_t few_tokens;
};

#if defined(ADDER_TIERS_X86)
namespace tier_amx {
const QuantizedMatrixKernels& quantized_matrix_kernels();
}
namespace tier_amx_emulated {  // for tests
const QuantizedMatrixKernels& quantized_matrix_kernels();
}
#endif

/// Those of the active tier, or null where it has none.
inline const QuantizedMatrixKernels* quantized_matrix_kernels() {
#if defined(ADDER_TIERS_X86)
  if (active_cpu_tier() == CpuTier::amx) return &tier_amx::quantized_matrix_kernels();
#endif
  return nullptr;
}

}  // namespace adder::cpu
