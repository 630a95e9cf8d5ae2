#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

/// Inputs of a token that share a scale.
inline constexpr std::int64_t kQuantInputBlock = 256;
/// How many tokens lie side by side is for a tier to choose, but it divides this: tokens are shared
/// out by multiples of it.
inline constexpr std::int64_t kQuantTokenStep = 24;

/// x, quantized. Some tokens lie side by side (see above), fewer at the end: n of them, in `blocks`
/// blocks of 32 inputs, as
///
///   values [blocks][8][n][4]    integers
///   scales [blocks / 8][n]      of 256 inputs each, the last perhaps of fewer
///   starts [blocks][n]          what dot products of codes start from: the sum of the integers
///                               times the negative code for zero, counted from where the tier's
///                               codes begin (kCodeOffset in dot.h)
struct QuantizedInput {
  std::int8_t* values;
  float* scales;
  std::int32_t* starts;
};

/// How many scales a token has.
[[gnu::always_inline]] constexpr std::int64_t quant_input_scales(std::int64_t blocks) {
  return (blocks + 7) / 8;
}

/// `token` is where tokens begin that lie side by side. Always inline: files of all tiers have it.
[[gnu::always_inline]] inline QuantizedInput input_from_token(QuantizedInput x, std::int64_t token,
                                                              std::int64_t blocks) {
  return {.values = x.values + token * blocks * 32,
          .scales = x.scales + token * quant_input_scales(blocks),
          .starts = x.starts + token * blocks};
}

/// Tokens of x to be quantized.
struct QuantizeWork {
  const float* x;
  std::int64_t x_stride;
  std::int64_t ntokens;
  std::int64_t in_features;
  std::int64_t blocks;
  std::int32_t zero;             ///< the code for zero
  std::int64_t tokens_together;  ///< that lie side by side
  QuantizedInput to;
};

/// All tokens of x against the panels [panel_begin, panel_end) of a quantized weight.
struct QuantizedLinearWork {
  QuantizedInput x;
  std::int64_t ntokens;
  std::int64_t blocks;
  const std::uint8_t* weights;  ///< panel 0
  std::int64_t panel_bytes;
  std::int64_t panels;  ///< that there are: the next ones are fetched meanwhile
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
  std::int64_t tokens_together;  ///< that products take side by side
};

ADDER_TIERED_KERNELS_DOT(QuantizedLinearKernels, quantized_linear_kernels)

/// Kernels for more than `few_tokens` tokens, with the same bits, in tiers that multiply matrices
/// of bytes. x has its tokens one by one; its starts are not read.
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
