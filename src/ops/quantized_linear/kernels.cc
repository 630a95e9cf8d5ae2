// Work per token: 2 · out_features · in_features integer operations, of which a VNNI instruction
// does 128 in 512 bits; for each block of 32 inputs, token and vector of outputs three floating
// point operations more, against eight of those instructions: 73 % of the integer peak at most.
// Few tokens (decoding) are bound by reading the weight once.
//
// Register tile, in vectors: AVX-512 4 tokens × 3 panels of 1 (12 integer and 12 float sums), 256
// bits 2 × 1 panel of 2, NEON 3 × 1 and SSE2 1 × 1 panel of 4; with one token 6 panels (256 bits
// and NEON: 2), so that several streams of memory are read at once. Many tokens go over blocks of
// inputs outside and panels inside, as in ops/linear: x stays in L2, the codes of three panels in
// L1, where those of 4 bits are taken apart once per 512 tokens.
//
// Each sum takes its blocks in order; between blocks of inputs it rests in y, as the float that it
// is. So no choice of tile, block or share changes a bit of the result.

#include "ops/quantized_linear/kernels.h"

#include "ops/quantized_linear/dot.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kOutputs = 16;  // per panel
constexpr int kVectors = kOutputs / kLanes;
constexpr int kBlock = 32;  // inputs that share a scale
constexpr int kGroups = kBlock / 4;
constexpr int kGroupBytes = 4 * kOutputs;
constexpr int kCodeBytes = kBlock * kOutputs;  // of a block of 8 bits
constexpr int kScaleBytes = 2 * kOutputs;      // of a block

#if defined(__AVX512F__)
constexpr int kTokens = 4;
constexpr int kPanels = 3;
constexpr int kWidePanels = 6;
#elif defined(__AVX2__)
constexpr int kTokens = 2;
constexpr int kPanels = 1;
constexpr int kWidePanels = 2;
#elif defined(__aarch64__)
constexpr int kTokens = 3;
constexpr int kPanels = 1;
constexpr int kWidePanels = 2;
#else
constexpr int kTokens = 1;
constexpr int kPanels = 1;
constexpr int kWidePanels = 1;
#endif

// Up to here codes are read straight from storage.
constexpr std::int64_t kFewTokens = 4;
// 3 panels × 32 blocks × 512 bytes = 48 KB of codes: what L1 does not hold streams from L2.
constexpr std::int64_t kBlocksAtOnce = 32;
// 512 tokens × 1,024 inputs of a byte = 512 KB of x stay in L2 while all panels go by.
constexpr std::int64_t kTokensAtOnce = 512;
// How far ahead, per panel, codes are prefetched from memory when decoding.
constexpr int kPrefetchBytes = 2048;

// ---- codes
// ---------------------------------------------------------------------------------------

struct Int8 {
  static constexpr int kBytes = kCodeBytes;  // of a block
  static constexpr int kGroupsAtOnce = 1;
  // Those of kGroupsAtOnce groups from vector `v` of what is stored: group i + n · kGroups /
  // kGroupsAtOnce is out[n].
  static ADDER_INLINE void get(const std::uint8_t* stored, I32 (&out)[1]) {
    out[0] = load_i32(stored);
  }
};

struct Int4 {
  static constexpr int kBytes = kCodeBytes / 2;
  static constexpr int kGroupsAtOnce = 2;
  static ADDER_INLINE void get(const std::uint8_t* stored, I32 (&out)[2]) {
    const I32 both = load_i32(stored);
    out[0] = both & 0x0f0f0f0f;
    out[1] = (both >> 4) & 0x0f0f0f0f;
  }
};

// ---- the register tile
// ---------------------------------------------------------------------------

struct Tile {
  const std::uint8_t* codes;  // of the first panel and block
  std::int64_t panel_codes;   // bytes from one panel's codes to the next's
  const std::uint8_t* scales;
  std::int64_t panel_scales;
  std::int64_t blocks;    // to be multiplied
  QuantizedInput x;       // of the first token and block
  std::int64_t x_blocks;  // from one token to the next
  const float* bias;      // of the tile's first output, or null
  float* y;               // of the tile's first token and output
  std::int64_t y_stride;
  std::int64_t outputs;  // that exist from the tile's first on: may be fewer or more than it covers
  bool resume;           // y holds the sums over the blocks before
};

// The vector at output `o` of a row that ends after `outputs` elements.
ADDER_INLINE F32 load_outputs(const float* row, std::int64_t o, std::int64_t outputs) {
  if (o + kLanes <= outputs) return load(row + o);
  return o < outputs ? load_n(row + o, static_cast<int>(outputs - o)) : zero();
}
ADDER_INLINE void store_outputs(float* row, std::int64_t o, std::int64_t outputs, F32 value) {
  if (o + kLanes <= outputs) {
    store(row + o, value);
  } else if (o < outputs) {
    store_n(row + o, value, static_cast<int>(outputs - o));
  }
}

template <typename Format, int kT, int kP>
__attribute__((noinline)) void multiply_tile(const Tile& tile) {
  constexpr int kV = kP * kVectors;
  constexpr int kAtOnce = Format::kGroupsAtOnce;
  F32 sums[kT][kV];
  const float* start = tile.resume ? tile.y : tile.bias;
  const std::int64_t start_stride = tile.resume ? tile.y_stride : 0;
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      sums[t][v] = start == nullptr
                       ? zero()
                       : load_outputs(start + t * start_stride, v * kLanes, tile.outputs);
    }
  }
  for (std::int64_t b = 0; b < tile.blocks; ++b) {
    const std::uint8_t* codes = tile.codes + b * Format::kBytes;
    const std::int8_t* x = tile.x.values + b * kBlock;
    I32 dots[kT][kV];
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
      const I32 from = set1_i32(tile.x.starts[t * tile.x_blocks + b]);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) dots[t][v] = from;
    }
    if constexpr (kT == 1) {
#pragma GCC unroll 8
      for (int p = 0; p < kP; ++p) {
        const std::uint8_t* ahead = codes + p * tile.panel_codes + kPrefetchBytes;
#pragma GCC unroll 8
        for (int line = 0; line < Format::kBytes; line += 64) __builtin_prefetch(ahead + line);
      }
    }
#pragma GCC unroll 8
    for (int group = 0; group < kGroups / kAtOnce; ++group) {
      Codes w[kV][kAtOnce];
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        I32 taken[kAtOnce];
        Format::get(codes + v / kVectors * tile.panel_codes + group * kGroupBytes +
                        v % kVectors * 4 * kLanes,
                    taken);
        for (int n = 0; n < kAtOnce; ++n) w[v][n] = Codes::of(taken[n]);
      }
#pragma GCC unroll 2
      for (int n = 0; n < kAtOnce; ++n) {
#pragma GCC unroll 8
        for (int t = 0; t < kT; ++t) {
          const Bytes bytes = Bytes::broadcast(x + t * tile.x_blocks * kBlock +
                                               (group + n * (kGroups / kAtOnce)) * 4);
#pragma GCC unroll 8
          for (int v = 0; v < kV; ++v) dots[t][v] = dot(dots[t][v], w[v][n], bytes);
        }
      }
    }
    F32 scales[kV];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      scales[v] = load(reinterpret_cast<const f16*>(tile.scales + v / kVectors * tile.panel_scales +
                                                    b * kScaleBytes) +
                       v % kVectors * kLanes);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
      const F32 x_scale = set1(tile.x.scales[t * tile.x_blocks + b]);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        sums[t][v] = fma(__builtin_convertvector(dots[t][v], F32) * x_scale, scales[v], sums[t][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      store_outputs(tile.y + t * tile.y_stride, v * kLanes, tile.outputs, sums[t][v]);
    }
  }
}

ADDER_INLINE void next_tokens(Tile& tile, int n) {
  tile.x.values += n * tile.x_blocks * kBlock;
  tile.x.scales += n * tile.x_blocks;
  tile.x.starts += n * tile.x_blocks;
  tile.y += n * tile.y_stride;
}

// Any number of tokens against kP panels.
template <typename Format, int kP>
void multiply_tokens(std::int64_t tokens, Tile tile) {
  constexpr int kMaxTokens = kP == kWidePanels && kWidePanels != kPanels ? 1 : kTokens;
  for (; tokens >= kMaxTokens; tokens -= kMaxTokens) {
    multiply_tile<Format, kMaxTokens, kP>(tile);
    next_tokens(tile, kMaxTokens);
  }
  if constexpr (kMaxTokens > 1) {
    for (; tokens > 0; --tokens) {
      multiply_tile<Format, 1, kP>(tile);
      next_tokens(tile, 1);
    }
  }
}

// ---- blocks
// --------------------------------------------------------------------------------------

template <typename Format>
Tile tile_at(const QuantizedLinearWork& work, std::int64_t panel) {
  const std::uint8_t* codes = work.weights + panel * work.panel_bytes;
  const std::int64_t output = panel * kOutputs;
  return {.codes = codes,
          .panel_codes = work.panel_bytes,
          .scales = codes + work.blocks * Format::kBytes,
          .panel_scales = work.panel_bytes,
          .blocks = work.blocks,
          .x = work.x,
          .x_blocks = work.blocks,
          .bias = work.bias != nullptr ? work.bias + output : nullptr,
          .y = work.y + output,
          .y_stride = work.y_stride,
          .outputs = work.out_features - output,
          .resume = false};
}

template <typename Format>
void multiply_few(const QuantizedLinearWork& work) {
  std::int64_t panel = work.panel_begin;
  if (work.ntokens == 1) {
    for (; panel + kWidePanels <= work.panel_end; panel += kWidePanels) {
      multiply_tokens<Format, kWidePanels>(1, tile_at<Format>(work, panel));
    }
  }
  for (; panel + kPanels <= work.panel_end; panel += kPanels) {
    multiply_tokens<Format, kPanels>(work.ntokens, tile_at<Format>(work, panel));
  }
  for (; panel < work.panel_end; ++panel) {
    multiply_tokens<Format, 1>(work.ntokens, tile_at<Format>(work, panel));
  }
}

// The codes of `blocks` blocks of one panel, as bytes.
template <typename Format>
void take_apart(const std::uint8_t* stored, std::int64_t blocks, std::uint8_t* out) {
  constexpr int kAtOnce = Format::kGroupsAtOnce;
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (int i = 0; i < Format::kBytes; i += 4 * kLanes) {
      I32 taken[kAtOnce];
      Format::get(stored + b * Format::kBytes + i, taken);
      for (int n = 0; n < kAtOnce; ++n) {
        std::memcpy(out + b * kCodeBytes + n * Format::kBytes + i, &taken[n], sizeof(I32));
      }
    }
  }
}

// kP panels from `panel` on against `tokens` tokens from `token` on, over `blocks` blocks from
// `block` on.
template <typename Format, int kP>
void multiply_block(const QuantizedLinearWork& work, std::int64_t panel, std::int64_t token,
                    std::int64_t tokens, std::int64_t block, std::int64_t blocks) {
  constexpr bool kTakeApart = Format::kGroupsAtOnce > 1;
  alignas(64) std::uint8_t codes[kTakeApart ? kP * kBlocksAtOnce * kCodeBytes : 1];
  Tile tile = tile_at<Format>(work, panel);
  tile.codes += block * Format::kBytes;
  if constexpr (kTakeApart) {
    for (int p = 0; p < kP; ++p) {
      take_apart<Format>(tile.codes + p * tile.panel_codes, blocks,
                         codes + p * kBlocksAtOnce * kCodeBytes);
    }
    tile.codes = codes;
    tile.panel_codes = kBlocksAtOnce * kCodeBytes;
  }
  tile.scales += block * kScaleBytes;
  tile.blocks = blocks;
  tile.resume = block > 0;
  tile.x.values += block * kBlock;
  tile.x.scales += block;
  tile.x.starts += block;
  for (; token > 0; token -= kTokensAtOnce) next_tokens(tile, kTokensAtOnce);
  multiply_tokens<Int8, kP>(tokens, tile);
}

template <typename Format>
void multiply_many(const QuantizedLinearWork& work) {
  std::int64_t tokens;
  for (std::int64_t token = 0; token < work.ntokens; token += tokens) {
    tokens = work.ntokens - token < kTokensAtOnce ? work.ntokens - token : kTokensAtOnce;
    std::int64_t block = 0;
    do {  // at least once, so that a sum over no inputs gives the bias
      const std::int64_t left = work.blocks - block;
      const std::int64_t blocks = left < kBlocksAtOnce ? left : kBlocksAtOnce;
      std::int64_t panel = work.panel_begin;
      for (; panel + kPanels <= work.panel_end; panel += kPanels) {
        multiply_block<Format, kPanels>(work, panel, token, tokens, block, blocks);
      }
      for (; panel < work.panel_end; ++panel) {
        multiply_block<Format, 1>(work, panel, token, tokens, block, blocks);
      }
      block += blocks;
    } while (block < work.blocks);
  }
}

template <typename Format>
void multiply(const QuantizedLinearWork& work) {
  if (work.ntokens <= kFewTokens) {
    multiply_few<Format>(work);
  } else {
    multiply_many<Format>(work);
  }
}

// ---- inputs
// --------------------------------------------------------------------------------------

typedef std::int8_t I8 __attribute__((vector_size(kLanes)));

// A block of `count` inputs, 1 <= count <= 32.
ADDER_INLINE void quantize_block(const float* x, int count, std::int32_t zero_code,
                                 std::int8_t* values, float& scale, std::int32_t& start) {
  constexpr int kParts = kBlock / kLanes;
  F32 part[kParts];
  F32 largest = zero();
  I32 all_finite = ~I32{};
  for (int i = 0; i < kParts; ++i) {
    const int left = count - i * kLanes;
    part[i] = left >= kLanes ? load(x + i * kLanes)
              : left > 0     ? load_n(x + i * kLanes, left)
                             : zero();
    all_finite &= abs(part[i]) < set1(__builtin_inff());
    largest = max(largest, abs(part[i]));
  }
  const float most = reduce_max(largest);
  std::int32_t is_finite = -1;
  for (int i = 0; i < kLanes; ++i) is_finite &= all_finite[i];
  // Of numbers so small that 127 / most has no value nothing is left.
  float inverse = most > 0 ? 127.0F / most : 0.0F;
  scale = most / 127.0F;
  if (!(inverse < __builtin_inff())) {
    inverse = 0;
    scale = 0;
  }
  if (is_finite == 0) scale = __builtin_nanf("");
  I32 sum{};
  for (int i = 0; i < kParts; ++i) {
    I32 rounded = to_i32(round_small(part[i] * set1(inverse)));
    if (is_finite == 0) rounded = I32{};
    sum += rounded;
    const I8 bytes = __builtin_convertvector(rounded, I8);
    std::memcpy(values + i * kLanes, &bytes, sizeof(bytes));
  }
  std::int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += sum[i];
  start = (kCodeOffset - zero_code) * total;
}

void quantize(const QuantizeWork& work) {
  for (std::int64_t t = 0; t < work.ntokens; ++t) {
    const float* x = work.x + t * work.x_stride;
    for (std::int64_t b = 0; b < work.blocks; ++b) {
      const std::int64_t at = t * work.blocks + b;
      const std::int64_t left = work.in_features - b * kBlock;
      quantize_block(x + b * kBlock, left < kBlock ? static_cast<int>(left) : kBlock, work.zero,
                     work.to.values + at * kBlock, work.to.scales[at], work.to.starts[at]);
    }
  }
}

}  // namespace

const QuantizedLinearKernels& quantized_linear_kernels() {
  static constexpr QuantizedLinearKernels kKernels{quantize, multiply<Int8>, multiply<Int4>};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
