// Quantized weights times many tokens, by AMX. A block of 32 inputs has a scale of its own for each
// token and output, so an instruction multiplies 16 tokens by 16 outputs over one block: half of
// the depth that it could take, in the same 16 cycles, yet four times the operations of VNNI's dot
// products. What follows takes more: the 256 sums go through memory (16 stores), become floats and
// are scaled (16 × 2 vector instructions, 16 cycles), all of it beside the products of the next
// block, which uses other registers.
//
// Codes are taken apart and made signed once per block of 32 · 32 inputs and 512 tokens (16 KB in
// L1), so that no sum has a start to be added.
//
// Products are exact, and sums take the blocks in the order and with the roundings of
// kernels.cc: its bits are those of every tier with FMA.

#include "ops/quantized_linear/kernels.h"
#include "simd/amx.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kOutputs = 16;  // per panel
constexpr int kBlock = 32;    // inputs that share a scale
constexpr int kTokens = kTileRegisterRows;
constexpr int kLine = 64;                      // bytes: four inputs of 16 outputs
constexpr int kCodeBytes = kBlock * kOutputs;  // of a block of 8 bits
constexpr int kScaleBytes = 2 * kOutputs;      // of a block
constexpr std::int64_t kBlocksOfInput = kQuantInputBlock / kBlock;
constexpr std::int64_t kBlocksAtOnce = 32;
static_assert(kBlocksAtOnce % kBlocksOfInput == 0);
constexpr std::int64_t kTokensAtOnce = 512;
static_assert(kLanes == kOutputs);

ADDER_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

ADDER_INLINE I32 load_i32(const void* p) {
  I32 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
ADDER_INLINE void store_i32(void* p, I32 v) { std::memcpy(p, &v, sizeof(v)); }

typedef std::int8_t I8 __attribute__((vector_size(4 * kLanes)));

// Codes become the integers that they stand for.
struct Int8 {
  static constexpr int kBytes = kCodeBytes;  // of a block
  static ADDER_INLINE void take_apart(const std::uint8_t* stored, std::uint8_t* out) {
    for (int i = 0; i < kBytes; i += kLine) {
      store_i32(out + i, load_i32(stored + i) ^ static_cast<std::int32_t>(0x80808080u));
    }
  }
};
struct Int4 {
  static constexpr int kBytes = kCodeBytes / 2;
  static ADDER_INLINE void take_apart(const std::uint8_t* stored, std::uint8_t* out) {
    for (int i = 0; i < kBytes; i += kLine) {
      const I32 both = load_i32(stored + i);
      store_i32(out + i, minus_8(both & 0x0f0f0f0f));
      store_i32(out + kBytes + i, minus_8((both >> 4) & 0x0f0f0f0f));
    }
  }
  static ADDER_INLINE I32 minus_8(I32 codes) {
    return reinterpret_cast<I32>(reinterpret_cast<I8>(codes) - 8);
  }
};

struct Tile {
  const std::uint8_t* weights;  // of the panel, taken apart
  const std::uint8_t* scales;
  std::int64_t blocks;
  const std::int8_t* x;  // of the first token
  std::int64_t x_stride;
  const float* x_scales;
  std::int64_t x_scale_stride;  // from one token's scales to the next's
  const float* start;           // of the tile's first token and output, or null for zero
  std::int64_t start_stride;
  float* y;
  std::int64_t y_stride;
  std::int64_t tokens;   // that exist, at most 16
  std::int64_t outputs;  // that exist, at most 16
};

// The products of block `b`: sums in register kSum, from there to memory.
template <int kSum>
ADDER_INLINE void multiply_block(const Tile& tile, std::int64_t b,
                                 std::int32_t (&sums)[kTokens][kOutputs]) {
  tile_zero<kSum>();
  tile_load<kSum + 2>(tile.x + b * kBlock, tile.x_stride);
  tile_load<kSum + 4>(tile.weights + b * kCodeBytes, kLine);
  tile_dot_int8<kSum, kSum + 2, kSum + 4>();
  tile_store<kSum>(sums, sizeof(sums[0]));
}

__attribute__((noinline)) void multiply_tile(const Tile& tile) {
  alignas(64) std::int32_t products[2][kTokens][kOutputs];
  alignas(64) float sums[kTokens][kOutputs];
  const auto outputs = static_cast<int>(tile.outputs);
  std::int64_t x_scale_at[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    // Tokens that are not there repeat the last one's scales, and are not stored.
    const std::int64_t there = smaller(t, tile.tokens - 1);
    x_scale_at[t] = there * tile.x_scale_stride;
    store(sums[t],
          tile.start == nullptr ? zero() : load_n(tile.start + there * tile.start_stride, outputs));
  }
  F32 part[kTokens];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) part[t] = zero();
  const auto add = [&](std::int64_t b, const std::int32_t(&dots)[kTokens][kOutputs])
      __attribute__((always_inline)) {
    const F32 scale = load(reinterpret_cast<const f16*>(tile.scales + b * kScaleBytes));
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      part[t] = fma(__builtin_convertvector(load_i32(dots[t]), F32), scale, part[t]);
    }
    if ((b + 1) % kBlocksOfInput != 0 && b + 1 != tile.blocks) return;
    const float* x_scale = tile.x_scales + b / kBlocksOfInput;
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      store(sums[t], fma(part[t], set1(x_scale[x_scale_at[t]]), load(sums[t])));
      part[t] = zero();
    }
  };
  if (tile.blocks > 0) multiply_block<0>(tile, 0, products[0]);
  std::int64_t b = 0;
  for (; b + 2 < tile.blocks; b += 2) {
    multiply_block<1>(tile, b + 1, products[1]);
    add(b, products[0]);
    multiply_block<0>(tile, b + 2, products[0]);
    add(b + 1, products[1]);
  }
  if (b + 1 < tile.blocks) multiply_block<1>(tile, b + 1, products[1]);
  if (b < tile.blocks) add(b, products[0]);
  if (b + 1 < tile.blocks) add(b + 1, products[1]);
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    store_n(tile.y + t * tile.y_stride, load(sums[t]), outputs);
  }
}

// `tokens` tokens from `token` on against all panels, over `blocks` blocks from `block` on.
template <typename Format>
void multiply_part(const QuantizedLinearWork& work, std::int64_t token, std::int64_t tokens,
                   std::int64_t block, std::int64_t blocks) {
  alignas(64) std::uint8_t weights[kBlocksAtOnce * kCodeBytes];
  alignas(64) std::int8_t last[kTokens * kBlocksAtOnce * kBlock];
  const std::int64_t x_stride = work.blocks * kBlock;
  const std::int64_t x_scales = quant_input_scales(work.blocks);
  const std::int8_t* x = work.x.values + token * x_stride + block * kBlock;
  // The tokens beyond the last whole tile, padded with zeros.
  const std::int64_t whole = tokens / kTokens * kTokens;
  if (whole < tokens) {
    std::memset(last, 0, sizeof(last));
    for (std::int64_t t = whole; t < tokens; ++t) {
      std::memcpy(last + (t - whole) * kBlocksAtOnce * kBlock, x + t * x_stride,
                  static_cast<std::size_t>(blocks * kBlock));
    }
  }
  for (std::int64_t panel = work.panel_begin; panel < work.panel_end; ++panel) {
    const std::uint8_t* codes = work.weights + panel * work.panel_bytes;
    for (std::int64_t b = 0; b < blocks; ++b) {
      Format::take_apart(codes + (block + b) * Format::kBytes, weights + b * kCodeBytes);
    }
    const std::int64_t output = panel * kOutputs;
    const float* bias = work.bias != nullptr ? work.bias + output : nullptr;
    for (std::int64_t t = 0; t < tokens; t += kTokens) {
      float* y = work.y + (token + t) * work.y_stride + output;
      multiply_tile({.weights = weights,
                     .scales = codes + work.blocks * Format::kBytes + block * kScaleBytes,
                     .blocks = blocks,
                     .x = t < whole ? x + t * x_stride : last,
                     .x_stride = t < whole ? x_stride : kBlocksAtOnce * kBlock,
                     .x_scales = work.x.scales + (token + t) * x_scales + block / kBlocksOfInput,
                     .x_scale_stride = x_scales,
                     .start = block > 0 ? y : bias,
                     .start_stride = block > 0 ? work.y_stride : 0,
                     .y = y,
                     .y_stride = work.y_stride,
                     .tokens = smaller(kTokens, tokens - t),
                     .outputs = smaller(kOutputs, work.out_features - output)});
    }
  }
}

constexpr TileConfig make_config() {
  TileConfig config;
  for (int sum : {0, 1}) config.set(sum, kTokens, 4 * kOutputs);
  for (int x : {2, 3}) config.set(x, kTokens, kBlock);
  for (int weights : {4, 5}) config.set(weights, kBlock / 4, kLine);
  return config;
}

template <typename Format>
void multiply(const QuantizedLinearWork& work) {
  static constexpr TileConfig kConfig = make_config();
  configure_tiles(kConfig);
  for (std::int64_t token = 0; token < work.ntokens; token += kTokensAtOnce) {
    const std::int64_t tokens = smaller(kTokensAtOnce, work.ntokens - token);
    std::int64_t block = 0;
    do {  // at least once, so that a sum over no inputs gives the bias
      const std::int64_t blocks = smaller(kBlocksAtOnce, work.blocks - block);
      multiply_part<Format>(work, token, tokens, block, blocks);
      block += kBlocksAtOnce;
    } while (block < work.blocks);
  }
  release_tiles();
}

}  // namespace

const QuantizedMatrixKernels& quantized_matrix_kernels() {
  static constexpr QuantizedMatrixKernels kKernels{multiply<Int8>, multiply<Int4>, 8};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
