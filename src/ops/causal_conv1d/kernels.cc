// Work per element: 2 · width flops, and with SiLU one exponential and one division; 8 bytes of x
// and y from memory. Four tokens at a time load each weight once and each row of x once, so that a
// vector of outputs costs (width + 3 + width + 1) / 4 = 3 loads at width 4 instead of 9, all of
// them from L1 (cpu.cc passes blocks of channels whose rows and weights fit there). What bounds the
// rest is the exponential and the division.

#include "ops/causal_conv1d/kernels.h"

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

// The channels [c, c + lanes) of all the tile's tokens. Every output is the same sum in the same
// order whatever the tile, so that the result does not depend on how tokens fall into tiles.
template <int kWidth, int kTokens, bool kSilu>
ADDER_INLINE void column(const ConvTile& tile, std::int64_t c, int lanes) {
  const auto get = [&](const float* p) __attribute__((always_inline)) {
    return lanes == kLanes ? load(p + c) : load_n(p + c, lanes);
  };
  F32 sums[kTokens];
  const F32 bias = tile.bias != nullptr ? get(tile.bias) : zero();
  for (int t = 0; t < kTokens; ++t) sums[t] = bias;
  F32 weight[kWidth];
  for (int k = 0; k < kWidth; ++k) weight[k] = get(tile.weight + k * tile.weight_stride);
  for (int row = 0; row < kTokens + kWidth - 1; ++row) {
    const F32 x = get(tile.x[row]);
    for (int t = 0; t < kTokens; ++t) {
      const int k = row - t;
      if (k >= 0 && k < kWidth) sums[t] = fma(weight[k], x, sums[t]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    const F32 y = kSilu ? silu(sums[t]) : sums[t];
    lanes == kLanes ? store(tile.y[t] + c, y) : store_n(tile.y[t] + c, y, lanes);
  }
}

template <int kWidth, int kTokens, bool kSilu>
void run(const ConvTile& tile) {
  std::int64_t c = 0;
  for (; c + kLanes <= tile.channels; c += kLanes) column<kWidth, kTokens, kSilu>(tile, c, kLanes);
  if (c < tile.channels) {
    column<kWidth, kTokens, kSilu>(tile, c, static_cast<int>(tile.channels - c));
  }
}

template <int kWidth>
void run_width(const ConvTile& tile, int ntokens) {
  if (ntokens == kConvTile) {
    tile.silu ? run<kWidth, kConvTile, true>(tile) : run<kWidth, kConvTile, false>(tile);
  } else {
    tile.silu ? run<kWidth, 1, true>(tile) : run<kWidth, 1, false>(tile);
  }
}

void tile_of_width(const ConvTile& tile, int width, int ntokens) {
  switch (width) {
    case 2:
      return run_width<2>(tile, ntokens);
    case 3:
      return run_width<3>(tile, ntokens);
    case 4:
      return run_width<4>(tile, ntokens);
    case 5:
      return run_width<5>(tile, ntokens);
    case 6:
      return run_width<6>(tile, ntokens);
    case 7:
      return run_width<7>(tile, ntokens);
    default:
      return run_width<8>(tile, ntokens);
  }
}

}  // namespace

const CausalConv1dKernels& causal_conv1d_kernels() {
  static constexpr CausalConv1dKernels kKernels{tile_of_width};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
