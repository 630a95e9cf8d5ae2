// Work per token: 2 · out_features · in_features integer operations, of which a VNNI instruction
// does 128 in 512 bits; for each block of 32 inputs, token and vector of outputs two floating point
// operations more, against eight of those instructions: 80 % of the integer peak at most. Few
// tokens (decoding) are bound by reading the weight once.
//
// Register tile, in vectors: AVX-512 with VNNI 8 tokens × 3 panels of 1, 256 bits with VNNI 6 × 1
// panel of 2, baseline 1 × 1 panel of 4: integer sums alone, those in floating point rest in L1.
// With one token 6 panels, so that several streams of memory are read at once. A tile goes over all
// inputs, so that y is written once; codes stream from L2, 16 bytes a cycle, while those of the
// next panels are fetched there. Those of 4 bits are taken apart once per block of tokens.
//
// Inputs lie as a tile reads them: kTokens tokens side by side, so that one address does for all.
//
// Each sum takes its blocks in order, the blocks of 256 inputs theirs, and what rests in y in
// between is the float that it is. So no choice of tile, block or share changes a bit of the
// result.

#include "ops/quantized_linear/kernels.h"

#include "ops/quantized_linear/dot.h"
#include "simd/rows.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kOutputs = 16;  // per panel
constexpr int kVectors = kOutputs / kLanes;
constexpr int kBlock = 32;  // inputs that share a scale of the weight
constexpr int kGroups = kBlock / 4;
constexpr int kGroupBytes = 4 * kOutputs;
constexpr int kCodeBytes = kBlock * kOutputs;  // of a block of 8 bits
constexpr int kScaleBytes = 2 * kOutputs;      // of a block
constexpr int kBlocksOfInput = kQuantInputBlock / kBlock;

// Tile extents: tokens; panels; panels where there is one token. kTokens divides kQuantTokenStep.
#if defined(__AVX512VNNI__)
constexpr int kTokens = 6;
constexpr int kPanels = 2;
constexpr int kWidePanels = 6;
#elif defined(__AVX512F__)
constexpr int kTokens = 4;
constexpr int kPanels = 3;
constexpr int kWidePanels = 6;
#elif defined(__AVXVNNI__)
constexpr int kTokens = 6;
constexpr int kPanels = 1;
constexpr int kWidePanels = 2;
#elif defined(__AVX2__)
constexpr int kTokens = 3;
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
static_assert(kQuantTokenStep % kTokens == 0);

// Up to here codes are read straight from storage.
constexpr std::int64_t kFewTokens = 4;
// Blocks whose codes are taken apart at a time, of whole blocks of inputs: 2 panels × 160 × 512
// bytes = 160 KB.
constexpr std::int64_t kBlocksAtOnce = 160;
static_assert(kBlocksAtOnce % kBlocksOfInput == 0);
// How far ahead, per panel, codes are prefetched from memory when decoding.
constexpr int kPrefetchBytes = 2048;

// ---- codes --------------------------------------------------------------------------------------

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

// ---- the register tile --------------------------------------------------------------------------

struct Tile {
  const std::uint8_t* codes;  // of the first panel and block
  std::int64_t panel_codes;   // bytes from one panel's codes to the next's
  const std::uint8_t* scales;
  std::int64_t panel_scales;
  std::int64_t blocks;  // to be multiplied
  QuantizedInput x;     // of the first token and block
  const float* bias;    // of the tile's first output, or null
  float* y;             // of the tile's first token and output
  std::int64_t y_stride;
  std::int64_t outputs;  // that exist from the tile's first on: may be fewer or more than it covers
  bool resume;           // y holds the sums over the blocks before
  // What to fetch into L2 meanwhile, `ahead_step` bytes of it with each block.
  const std::uint8_t* ahead = nullptr;
  int ahead_step = 0;
};

// Sums of kT tokens and kV vectors.
template <int kT, int kV>
struct Sums {
  F32 of[kT][kV];

  template <typename Visit>
  ADDER_INLINE void each(Visit&& visit) {
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) visit(of[t][v], t, v);
    }
  }
  // Keeps many sums in memory, lest the compiler keeps them in registers and what is needed sooner
  // in memory.
  ADDER_INLINE void rest() {
    if constexpr (kT * kV > 8) asm volatile("" : : "r"(this) : "memory");
  }
};

// The products of one block, a vector of integers for each token and vector of outputs.
template <typename Format, int kT, int kV>
ADDER_INLINE void multiply_block(const std::uint8_t* codes, std::int64_t panel_codes,
                                 const std::int8_t* x, const std::int32_t* starts,
                                 I32 (&dots)[kT][kV]) {
  constexpr int kAtOnce = Format::kGroupsAtOnce;
#pragma GCC unroll 8
  for (int t = 0; t < kT; ++t) {
    const I32 from = set1_i32(starts[t]);
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) dots[t][v] = from;
  }
#pragma GCC unroll 8
  for (int group = 0; group < kGroups / kAtOnce; ++group) {
    Codes w[kV][kAtOnce];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      I32 taken[kAtOnce];
      Format::get(
          codes + v / kVectors * panel_codes + group * kGroupBytes + v % kVectors * 4 * kLanes,
          taken);
      for (int n = 0; n < kAtOnce; ++n) w[v][n] = Codes::of(taken[n]);
    }
#pragma GCC unroll 2
    for (int n = 0; n < kAtOnce; ++n) {
#pragma GCC unroll 8
      for (int t = 0; t < kT; ++t) {
        const int at = (group + n * (kGroups / kAtOnce)) * kT + t;
        const Bytes bytes = Bytes::broadcast(x + 4 * at);
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) dots[t][v] = dot(dots[t][v], w[v][n], bytes);
      }
    }
  }
}

template <typename Format, int kT, int kP>
__attribute__((noinline)) void multiply_tile(const Tile& tile) {
  constexpr int kV = kP * kVectors;
  Sums<kT, kV> sums;
  const float* start = tile.resume ? tile.y : tile.bias;
  const std::int64_t start_stride = tile.resume ? tile.y_stride : 0;
  sums.each([&](F32 & sum, int t, int v) __attribute__((always_inline)) {
    sum =
        start == nullptr ? zero() : load_within(start + t * start_stride, v * kLanes, tile.outputs);
  });
  const std::uint8_t* codes = tile.codes;
  const std::uint8_t* weight_scales = tile.scales;
  const std::int8_t* x = tile.x.values;
  const std::int32_t* starts = tile.x.starts;
  const float* x_scales = tile.x.scales;
  const std::uint8_t* ahead = tile.ahead;
  for (std::int64_t left = tile.blocks; left > 0; left -= kBlocksOfInput) {
    const std::int64_t blocks = left < kBlocksOfInput ? left : kBlocksOfInput;
    Sums<kT, kV> part;
    part.each([](F32 & sum, int, int) __attribute__((always_inline)) { sum = zero(); });
    for (std::int64_t b = 0; b < blocks; ++b) {
      if constexpr (kT == 1) {
#pragma GCC unroll 8
        for (int p = 0; p < kP; ++p) {
          const std::uint8_t* later = codes + p * tile.panel_codes + kPrefetchBytes;
#pragma GCC unroll 8
          for (int line = 0; line < Format::kBytes; line += 64) __builtin_prefetch(later + line);
        }
      } else {
        for (int line = 0; line < tile.ahead_step; line += 64) {
          __builtin_prefetch(ahead + line, 0, 2);
        }
        ahead += tile.ahead_step;
      }
      I32 dots[kT][kV];
      multiply_block<Format, kT, kV>(codes, tile.panel_codes, x, starts, dots);
      F32 scales[kV];
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        scales[v] =
            load(reinterpret_cast<const f16*>(weight_scales + v / kVectors * tile.panel_scales) +
                 v % kVectors * kLanes);
      }
      part.each([&](F32 & sum, int t, int v) __attribute__((always_inline)) {
        sum = fma(__builtin_convertvector(dots[t][v], F32), scales[v], sum);
      });
      codes += Format::kBytes;
      weight_scales += kScaleBytes;
      x += kT * kBlock;
      starts += kT;
    }
    sums.each([&](F32 & sum, int t, int v) __attribute__((always_inline)) {
      sum = fma(part.of[t][v], set1(x_scales[t]), sum);
    });
    sums.rest();
    x_scales += kT;
  }
  sums.each([&](F32 & sum, int t, int v) __attribute__((always_inline)) {
    store_within(tile.y + t * tile.y_stride, v * kLanes, tile.outputs, sum);
  });
}

// `tokens` tokens, 1 <= tokens <= kT.
template <typename Format, int kP, int kT>
void multiply_up_to(std::int64_t tokens, const Tile& tile) {
  if (tokens == kT) {
    multiply_tile<Format, kT, kP>(tile);
  } else if constexpr (kT > 1) {
    multiply_up_to<Format, kP, kT - 1>(tokens, tile);
  }
}

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Codes that will be needed next, those of some panels.
struct Ahead {
  const std::uint8_t* codes = nullptr;
  std::int64_t panels = 0;
};

// A tile fetches a quarter of a panel's codes: 8 tiles fetch 2 panels.
constexpr int kAheadParts = 4;

template <typename Format>
void set_ahead(Tile& tile, const Ahead& ahead, std::int64_t panel_bytes, std::int64_t tile_index) {
  const std::int64_t panel = tile_index / kAheadParts;
  tile.ahead_step = panel < ahead.panels ? Format::kBytes / kAheadParts : 0;
  tile.ahead = ahead.codes + panel * panel_bytes +
               tile_index % kAheadParts * tile.blocks * (Format::kBytes / kAheadParts);
}

// ---- panels and tokens --------------------------------------------------------------------------

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
          .bias = work.bias != nullptr ? work.bias + output : nullptr,
          .y = work.y + output,
          .y_stride = work.y_stride,
          .outputs = work.out_features - output,
          .resume = false};
}

// The tile that begins `block` blocks of inputs further; its tokens are `tokens` side by side.
Tile from_block(Tile tile, std::int64_t block, std::int64_t tokens) {
  tile.x.values += block * kBlock * tokens;
  tile.x.starts += block * tokens;
  tile.x.scales += block / kBlocksOfInput * tokens;
  return tile;
}

// All tokens of `work` against kP panels; Stored is how codes are stored, Format how they come.
template <typename Stored, typename Format, int kP>
void multiply_tokens(const QuantizedLinearWork& work, std::int64_t block, Tile tile,
                     const Ahead& ahead) {
  for (std::int64_t token = 0; token < work.ntokens; token += kTokens) {
    const std::int64_t tokens = smaller(kTokens, work.ntokens - token);
    set_ahead<Stored>(tile, ahead, work.panel_bytes, token / kTokens);
    multiply_up_to<Format, kP, kTokens>(tokens, from_block(tile, block, tokens));
    tile.x = input_from_token(tile.x, tokens, work.blocks);
    tile.y += tokens * tile.y_stride;
  }
}

template <typename Format>
void multiply_few(const QuantizedLinearWork& work) {
  std::int64_t panel = work.panel_begin;
  if (work.ntokens == 1) {
    for (; panel + kWidePanels <= work.panel_end; panel += kWidePanels) {
      multiply_tile<Format, 1, kWidePanels>(tile_at<Format>(work, panel));
    }
  }
  for (; panel + kPanels <= work.panel_end; panel += kPanels) {
    multiply_tokens<Format, Format, kPanels>(work, 0, tile_at<Format>(work, panel), {});
  }
  for (; panel < work.panel_end; ++panel) {
    multiply_tokens<Format, Format, 1>(work, 0, tile_at<Format>(work, panel), {});
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

// kP panels from `panel` on against all tokens.
template <typename Format, int kP>
void multiply_panels(const QuantizedLinearWork& work, std::int64_t panel) {
  const Tile whole = tile_at<Format>(work, panel);
  Ahead ahead{.codes = whole.codes + kP * work.panel_bytes,
              .panels = smaller(kP, work.panels - panel - kP)};
  if constexpr (Format::kGroupsAtOnce == 1) {
    multiply_tokens<Format, Format, kP>(work, 0, whole, ahead);
  } else {
    alignas(64) std::uint8_t codes[kP * kBlocksAtOnce * kCodeBytes];
    std::int64_t block = 0;
    do {  // at least once, so that a sum over no inputs gives the bias
      Tile tile = whole;
      tile.blocks = smaller(kBlocksAtOnce, work.blocks - block);
      for (int p = 0; p < kP; ++p) {
        take_apart<Format>(whole.codes + p * work.panel_bytes + block * Format::kBytes, tile.blocks,
                           codes + p * kBlocksAtOnce * kCodeBytes);
      }
      tile.codes = codes;
      tile.panel_codes = kBlocksAtOnce * kCodeBytes;
      tile.scales += block * kScaleBytes;
      tile.resume = block > 0;
      multiply_tokens<Format, Int8, kP>(work, block, tile, ahead);
      ahead.panels = 0;
      block += tile.blocks;
    } while (block < work.blocks);
  }
}

template <typename Format>
void multiply(const QuantizedLinearWork& work) {
  if (work.ntokens <= kFewTokens) {
    multiply_few<Format>(work);
    return;
  }
  std::int64_t panel = work.panel_begin;
  for (; panel + kPanels <= work.panel_end; panel += kPanels) {
    multiply_panels<Format, kPanels>(work, panel);
  }
  for (; panel < work.panel_end; ++panel) multiply_panels<Format, 1>(work, panel);
}

// ---- inputs -------------------------------------------------------------------------------------

typedef std::int8_t I8 __attribute__((vector_size(kLanes)));

// What inputs are multiplied by, and the scale that undoes it.
struct InputScale {
  float inverse;
  float scale;
};

ADDER_INLINE InputScale scale_of(const float* x, std::int64_t count) {
  F32 largest = zero();
  F32 nothing = zero();  // unless an input is not finite
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const F32 part = load_within(x, i, count);
    largest = max(largest, abs(part));
    nothing = fma(part, zero(), nothing);
  }
  if (!(reduce_add(nothing) == 0)) return {.inverse = 0, .scale = __builtin_nanf("")};
  const float most = reduce_max(largest);
  // Of numbers so small that 127 / most has no value nothing is left.
  const float inverse = most > 0 ? 127.0F / most : 0.0F;
  if (!(inverse < __builtin_inff())) return {.inverse = 0, .scale = 0};
  return {.inverse = inverse, .scale = most / 127.0F};
}

// A block, of which the first `count` inputs exist; writes its groups of four `stride` bytes apart
// and returns the sum.
ADDER_INLINE std::int32_t quantize_block(const float* x, std::int64_t count, float inverse,
                                         std::int8_t* out, std::int64_t stride) {
  std::int8_t bytes[kBlock];
  F32 sum = zero();
#pragma GCC unroll 8
  for (int i = 0; i < kBlock; i += kLanes) {
    F32 rounded = round_small(load_within(x, i, count) * set1(inverse));
    // 0 · infinity is no number that could be converted.
    if (inverse == 0) rounded = zero();
    sum += rounded;
    const I8 narrow = __builtin_convertvector(to_i32(rounded), I8);
    std::memcpy(bytes + i, &narrow, sizeof(narrow));
  }
#pragma GCC unroll 8
  for (int group = 0; group < kGroups; ++group) {
    std::memcpy(out + group * stride, bytes + 4 * group, 4);
  }
  return static_cast<std::int32_t>(reduce_add(sum));
}

// Token `t` of `tokens` side by side.
void quantize_token(const QuantizeWork& work, const float* x, std::int64_t t, std::int64_t tokens,
                    const QuantizedInput& to) {
  InputScale scale{};
  for (std::int64_t block = 0; block < work.blocks; ++block) {
    const std::int64_t left = work.in_features - block * kBlock;
    if (block % kBlocksOfInput == 0) {
      scale = scale_of(x + block * kBlock, smaller(kQuantInputBlock, left));
      to.scales[block / kBlocksOfInput * tokens + t] = scale.scale;
    }
    const std::int32_t sum =
        quantize_block(x + block * kBlock, left, scale.inverse,
                       to.values + (block * kBlock * tokens + 4 * t), 4 * tokens);
    to.starts[block * tokens + t] = (kCodeOffset - work.zero) * sum;
  }
}

void quantize(const QuantizeWork& work) {
  QuantizedInput to = work.to;
  for (std::int64_t token = 0; token < work.ntokens; token += work.tokens_together) {
    const std::int64_t tokens = smaller(work.tokens_together, work.ntokens - token);
    for (std::int64_t t = 0; t < tokens; ++t) {
      quantize_token(work, work.x + (token + t) * work.x_stride, t, tokens, to);
    }
    to = input_from_token(to, tokens, work.blocks);
  }
}

}  // namespace

const QuantizedLinearKernels& quantized_linear_kernels() {
  static constexpr QuantizedLinearKernels kKernels{quantize, multiply<Int8>, multiply<Int4>,
                                                   kTokens};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
