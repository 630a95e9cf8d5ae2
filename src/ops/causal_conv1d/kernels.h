#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

/// Tokens that share their loads of x and weight in one pass over a block of channels.
inline constexpr int kConvTile = 4;

/// One pass over `channels` adjacent channels.
struct ConvTile {
  /// ntokens + width - 1 rows of x, oldest first: tokens and what came before them.
  const float* const* x;
  /// ntokens rows.
  float* const* y;
  /// Tap k of channel c is at weight[k * weight_stride + c].
  const float* weight;
  std::int64_t weight_stride;
  const float* bias;  ///< may be null
  std::int64_t channels;
  bool silu;
};

struct CausalConv1dKernels {
  /// `width` is 2 to 8; `ntokens` is kConvTile or 1.
  void (*tile)(const ConvTile& tile, int width, int ntokens);
};

ADDER_TIERED_KERNELS(CausalConv1dKernels, causal_conv1d_kernels)

}  // namespace adder::cpu
