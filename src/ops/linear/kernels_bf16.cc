// bf16 weights times x rounded to bf16, for tiers with a dot product of two bf16 numbers in each
// 32-bit lane: the packed weight is what it takes, 16 outputs of a pair of inputs. It does twice
// the operations of an FMA, and weights need not be widened.
//
// x is rounded once per block of tokens and inputs, into 256 KB on the stack; then tiles of tokens
// × panels go over the block's inputs, panels outside, so that x stays in L2 and three panels'
// weights of the block (96 KB) pass through it. With few tokens the block is as long as it can be,
// so that weights are read along.
//
// Register tile, in vectors: AVX-512 8 tokens × 3 panels of 1 (24 sums, 3 weights, x from memory),
// NEON 6 × 1 panel of 4; with one or two tokens 6 (NEON 2) panels, to read several streams at once.
//
// Each sum takes its pairs of inputs in order, in one accumulator; between blocks it rests in y. So
// no choice of tile, block or share changes a bit of the result.

#include "ops/linear/bf16_block.h"
#include "ops/linear/kernels.h"
#include "simd/rows.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kOutputs = kBf16Outputs;
constexpr int kVectors = kOutputs / kLanes;
#if defined(__AVX512BF16__)
constexpr int kTokens = 8;
constexpr int kPanels = 3;
constexpr int kWidePanels = 6;
#else
constexpr int kTokens = 6;
constexpr int kPanels = 1;
constexpr int kWidePanels = 2;
#endif
constexpr int kWideTokens = 2;
constexpr std::int64_t kInputs = 1024;
// How far ahead, per panel, weights are prefetched from memory when decoding.
constexpr int kPrefetchBytes = 1024;

// A pair of bf16 numbers in each lane.
ADDER_INLINE I32 load_pairs(const bf16* p) {
  I32 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
ADDER_INLINE I32 broadcast_pair(const bf16* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return set1_i32(pair);
}
// sum + the products of the pairs in each lane.
ADDER_INLINE F32 dot(F32 sum, I32 weights, I32 x) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<F32>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                reinterpret_cast<__m512bh>(weights),
                                                reinterpret_cast<__m512bh>(x)));
#else
  return reinterpret_cast<F32>(vbfdotq_f32(reinterpret_cast<float32x4_t>(sum),
                                           reinterpret_cast<bfloat16x8_t>(weights),
                                           reinterpret_cast<bfloat16x8_t>(x)));
#endif
}

struct Tile {
  const bf16* weights;  // first panel, first input of the block
  std::int64_t panel_elements;
  const bf16* x;  // first token, rounded
  std::int64_t x_stride;
  std::int64_t pairs;
  const float* start;  // of the tile's first token and output, or null for zero
  std::int64_t start_stride;
  float* y;  // of the tile's first token and output
  std::int64_t y_stride;
  std::int64_t outputs;  // that exist from the tile's first on: may be fewer or more than it covers
};

template <int kT, int kP>
__attribute__((noinline)) void multiply_tile(const Tile& tile) {
  constexpr int kV = kP * kVectors;
  F32 sum[kT][kV];
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      sum[t][v] = tile.start == nullptr
                      ? zero()
                      : load_within(tile.start + t * tile.start_stride, v * kLanes, tile.outputs);
    }
  }
  const bf16* weights = tile.weights;
  const bf16* x = tile.x;
  for (std::int64_t pair = 0; pair < tile.pairs; ++pair) {
    I32 w[kV];
#pragma GCC unroll 8
    for (int p = 0; p < kP; ++p) {
      const bf16* at = weights + p * tile.panel_elements;
      if constexpr (kT <= kWideTokens) {
        __builtin_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        w[p * kVectors + v] = load_pairs(at + v * 2 * kLanes);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
      const I32 x_t = broadcast_pair(x + t * tile.x_stride);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) sum[t][v] = dot(sum[t][v], w[v], x_t);
    }
    weights += 2 * kOutputs;
    x += 2;
  }
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      store_within(tile.y + t * tile.y_stride, v * kLanes, tile.outputs, sum[t][v]);
    }
  }
}

// `tokens` tokens, 1 <= tokens <= kT.
template <int kT, int kP>
void multiply_up_to(std::int64_t tokens, const Tile& tile) {
  if (tokens == kT) {
    multiply_tile<kT, kP>(tile);
  } else if constexpr (kT > 1) {
    multiply_up_to<kT - 1, kP>(tokens, tile);
  }
}

// Any number of tokens against kP panels.
template <int kP>
void multiply_panels(std::int64_t tokens, Tile tile) {
  constexpr int kMost = kP == kWidePanels ? kWideTokens : kTokens;
  for (; tokens > 0; tokens -= kMost) {
    multiply_up_to<kMost, kP>(tokens < kMost ? tokens : kMost, tile);
    tile.x += kMost * tile.x_stride;
    tile.y += kMost * tile.y_stride;
    if (tile.start != nullptr) tile.start += kMost * tile.start_stride;
  }
}

// All panels against a block of rounded x.
void multiply_block(const LinearWork& work, const bf16* x, std::int64_t width, std::int64_t token,
                    std::int64_t tokens, std::int64_t input) {
  // A pair whose second input is not there has a zero in weight and x.
  const std::int64_t inputs = smaller(width, work.in_features - input);
  std::int64_t n;
  for (std::int64_t panel = work.panel_begin; panel < work.panel_end; panel += n) {
    const std::int64_t left = work.panel_end - panel;
    const std::int64_t output = panel * kOutputs;
    float* y = work.y + token * work.y_stride + output;
    const float* bias = work.bias != nullptr ? work.bias + output : nullptr;
    const Tile tile{.weights = static_cast<const bf16*>(work.weights) +
                               panel * work.panel_elements + input * kOutputs,
                    .panel_elements = work.panel_elements,
                    .x = x,
                    .x_stride = width,
                    .pairs = (inputs + 1) / 2,
                    .start = input > 0 ? y : bias,
                    .start_stride = input > 0 ? work.y_stride : 0,
                    .y = y,
                    .y_stride = work.y_stride,
                    .outputs = work.out_features - output};
    if (tokens <= kWideTokens && left >= kWidePanels) {
      n = kWidePanels;
      multiply_panels<kWidePanels>(tokens, tile);
    } else if (left >= kPanels) {
      n = kPanels;
      multiply_panels<kPanels>(tokens, tile);
    } else {
      n = 1;
      multiply_panels<1>(tokens, tile);
    }
  }
}

}  // namespace

void multiply_rounded(const LinearWork& work) {
  alignas(64) bf16 x[kBf16Scratch];
  const Bf16Cut cut = cut_of(work, 1, kInputs);
  for (std::int64_t token = 0; token < work.ntokens; token += cut.tokens) {
    const std::int64_t tokens = smaller(cut.tokens, work.ntokens - token);
    std::int64_t input = 0;
    do {  // at least once, so that a sum over no inputs gives the bias
      round_block(work, token, tokens, input, cut.inputs, x);
      multiply_block(work, x, cut.inputs, token, tokens, input);
      input += cut.inputs;
    } while (input < work.in_features);
  }
}

}  // namespace adder::cpu::ADDER_TIER
