// Work per token: 2 · out_features · in_features flops. Few tokens (decoding) are bound by reading
// the weight once: they multiply straight from storage, several panels side by side, so that enough
// sums run at once to hide the latency of an FMA. Many tokens (prefill) are bound by FMAs, if these
// need not wait for L3: register tiles of tokens × panels over all inputs, as far as a block of x
// and the weights of the panels at hand fit into L2, so that y is written once and not read.
// Weights stream from L2 into every tile, 16 bytes a cycle; those of the next panels are fetched
// into L2 meanwhile. Where they are stored in 16 bits they are widened once per block of tokens.
//
// One core of a 2.8 GHz Xeon, 512 tokens, 768 → 3352, weights from memory: 169 GFLOP/s of 191 that
// FMAs in registers reach; 154 without fetching ahead; 149 with blocks of 256 inputs that L1 holds
// for 512 tokens, whose sums come from L3 and go there for every block. Tiles of 14 × 2 need fewer
// weights per FMA and were slower.
//
// Register tile, in vectors: AVX-512 8 tokens × 3 panels of 1 (24 sums, 3 weights, 1 broadcast; 11
// loads per 24 FMAs), AVX2 6 × 1 panel of 2, NEON 6 × 1 and SSE2 3 × 1 panel of 4.
//
// Each sum is one accumulator that takes its inputs in order. Between blocks of inputs it rests in
// y, as the float that it is. So no choice of tile, block or share changes a bit of the result.

#include "ops/linear/kernels.h"

#include "simd/rows.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kOutputs = 16;  // per panel
constexpr int kVectors = kOutputs / kLanes;

// Tile extents: tokens; panels; panels where one or two tokens leave registers free.
#if defined(__AVX512F__)
constexpr int kTokens = 8;
constexpr int kPanels = 3;
constexpr int kWidePanels = 6;
#elif defined(__AVX2__)
constexpr int kTokens = 6;
constexpr int kPanels = 1;
constexpr int kWidePanels = 3;
#elif defined(__aarch64__)
constexpr int kTokens = 6;
constexpr int kPanels = 1;
constexpr int kWidePanels = 2;
#else
constexpr int kTokens = 3;
constexpr int kPanels = 1;
constexpr int kWidePanels = 1;
#endif
constexpr int kWideTokens = 2;

// Up to here the weight is read straight from storage.
constexpr std::int64_t kFewTokens = 8;
// The caller passes as many tokens as let this block of their inputs stay in L2 while all panels go
// by (see Cells in shares.h), beside twice 3 panels × 768 inputs × 64 bytes =
// 147 KB of weights and what passes through of y: together less than 1 MB.
constexpr std::int64_t kInputBlock = kLinearInputBlock;
// How far ahead, per panel, weights are prefetched from memory when decoding.
constexpr std::int64_t kPrefetchBytes = 1024;

// ---- weights of one panel for kInputs successive inputs ----------------------------------------

template <typename T>
struct Weights {
  static constexpr int kInputs = 1;
  static ADDER_INLINE void get(const T* p, F32 (&w)[1][kVectors]) {
    for (int v = 0; v < kVectors; ++v) w[0][v] = load(p + v * kLanes);
  }
};

template <>
struct Weights<bf16> {
  static constexpr int kInputs = 2;
  // A 32-bit lane holds one output's weights for two inputs, the first in the lower half.
  static ADDER_INLINE void get(const bf16* p, F32 (&w)[2][kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
      U32 pair;
      std::memcpy(&pair, p + v * 2 * kLanes, sizeof(pair));
      w[0][v] = reinterpret_cast<F32>(pair << 16);
      w[1][v] = reinterpret_cast<F32>(pair & 0xffff0000u);
    }
  }
};

// ---- the register tile -------------------------------------------------------------------------

template <typename T>
struct Tile {
  const T* weights;  // first panel, first input of the block
  std::int64_t panel_elements;
  const float* x;  // first token, first input of the block
  std::int64_t x_stride;
  std::int64_t inputs;
  const float* bias;  // of the tile's first output, or null
  float* y;           // of the tile's first token and output
  std::int64_t y_stride;
  std::int64_t outputs;  // that exist from the tile's first on: may be fewer or more than it covers
  bool resume;           // y holds the sums over the inputs before this block
  // What to fetch into L2 meanwhile, `ahead_step` bytes further with each input; and no step where
  // there is nothing to be fetched.
  const char* ahead = nullptr;
  std::int64_t ahead_step = 0;
};

template <typename T, int kT, int kP>
__attribute__((noinline)) void multiply_tile(const Tile<T>& tile) {
  constexpr int kInputs = Weights<T>::kInputs;
  constexpr int kV = kP * kVectors;
  F32 sum[kT][kV];
  const auto each_sum = [&](auto&& visit) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) visit(sum[t][v], t, v * kLanes);
    }
  };
  if constexpr (kT == kTokens) {
    // The next tile's sums, which may be far away (y is wide): fetched while this one multiplies.
    for (int t = 0; t < kT; ++t) {
      for (int p = 0; p < kP; ++p) {
        __builtin_prefetch(tile.y + (kT + t) * tile.y_stride + p * kOutputs, 1);
      }
    }
  }
  const bool whole = tile.outputs >= kP * kOutputs;
  const float* start = tile.resume ? tile.y : tile.bias;
  const std::int64_t start_stride = tile.resume ? tile.y_stride : 0;
  if (!tile.resume && tile.bias == nullptr) {
    each_sum([](F32 & s, int, int) __attribute__((always_inline)) { s = zero(); });
  } else if (whole) {
    each_sum([&](F32 & s, int t, int o)
                 __attribute__((always_inline)) { s = load(start + t * start_stride + o); });
  } else {
    each_sum([&](F32 & s, int t, int o) __attribute__((always_inline)) {
      s = load_within(start + t * start_stride, o, tile.outputs);
    });
  }

  // sum[t][panel] += x[t][i] · w[i][panel] for the first `n` inputs at x and weights, 1 <= n <=
  // kInputs.
  const auto step = [&](const float* x, const T* weights, int n) __attribute__((always_inline)) {
    F32 w[kP][kInputs][kVectors];
#pragma GCC unroll 8
    for (int p = 0; p < kP; ++p) {
      const T* at = weights + p * tile.panel_elements;
      if constexpr (kT <= kWideTokens) {
        __builtin_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
      }
      Weights<T>::get(at, w[p]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
      for (int t = 0; t < kT; ++t) {
        const F32 x_t = set1(x[t * tile.x_stride + i]);
#pragma GCC unroll 8
        for (int p = 0; p < kP; ++p) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            F32& s = sum[t][p * kVectors + v];
            s = fma(x_t, w[p][i][v], s);
          }
        }
      }
    }
  };
  const float* x = tile.x;
  const T* weights = tile.weights;
  [[maybe_unused]] const char* ahead = tile.ahead;
  std::int64_t i = 0;
  for (; i + kInputs <= tile.inputs; i += kInputs) {
    if constexpr (kT == kTokens && kInputs == 1) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += tile.ahead_step;
    }
    step(x, weights, kInputs);
    x += kInputs;
    weights += kInputs * kOutputs;
  }
  if (i < tile.inputs) step(x, weights, 1);

  if (whole) {
    each_sum([&](F32 & s, int t, int o)
                 __attribute__((always_inline)) { store(tile.y + t * tile.y_stride + o, s); });
  } else {
    each_sum([&](F32 & s, int t, int o) __attribute__((always_inline)) {
      store_within(tile.y + t * tile.y_stride, o, tile.outputs, s);
    });
  }
}

// `tokens` tokens, 1 <= tokens <= kT.
template <typename T, int kP, int kT>
void multiply_up_to(std::int64_t tokens, const Tile<T>& tile) {
  if (tokens == kT) {
    multiply_tile<T, kT, kP>(tile);
  } else if constexpr (kT > 1) {
    multiply_up_to<T, kP, kT - 1>(tokens, tile);
  }
}

// Stored weights that will be needed next, a piece of each of some panels.
struct Ahead {
  const char* weights = nullptr;
  std::int64_t panels = 0;
  std::int64_t panel_bytes = 0;
  std::int64_t input_bytes = 0;  // of one panel
};

// A tile fetches a quarter of a panel's piece: 12 tiles fetch 3 panels. One line at a time, since
// loads of the tile wait in the same few buffers.
constexpr std::int64_t kAheadParts = 4;

template <typename T>
void set_ahead(Tile<T>& tile, const Ahead& ahead, std::int64_t tile_index) {
  const std::int64_t panel = tile_index / kAheadParts;
  if (panel < ahead.panels) {
    tile.ahead_step = ahead.input_bytes / kAheadParts;
    tile.ahead = ahead.weights + panel * ahead.panel_bytes +
                 tile_index % kAheadParts * tile.inputs * tile.ahead_step;
  } else {
    tile.ahead_step = 0;
    tile.ahead = reinterpret_cast<const char*>(tile.weights);
  }
}

// Any number of tokens against kP panels.
template <typename T, int kP>
void multiply_panels(std::int64_t tokens, Tile<T> tile, const Ahead& ahead) {
  constexpr int kMaxTokens = kP == kWidePanels && kWidePanels != kPanels ? kWideTokens : kTokens;
  for (std::int64_t index = 0; tokens >= kMaxTokens; tokens -= kMaxTokens, ++index) {
    set_ahead(tile, ahead, index);
    multiply_tile<T, kMaxTokens, kP>(tile);
    tile.x += kMaxTokens * tile.x_stride;
    tile.y += kMaxTokens * tile.y_stride;
  }
  if (tokens > 0) multiply_up_to<T, kP, kMaxTokens>(tokens, tile);
}

template <typename T>
void multiply_panels(std::int64_t panels, std::int64_t tokens, const Tile<T>& tile,
                     const Ahead& ahead) {
  switch (panels) {
    case kWidePanels:
      multiply_panels<T, kWidePanels>(tokens, tile, ahead);
      break;
#if defined(__AVX512F__)
    case kPanels:
      multiply_panels<T, kPanels>(tokens, tile, ahead);
      break;
#endif
#if defined(__AVX2__) || defined(__aarch64__)
    case 1:
      multiply_panels<T, 1>(tokens, tile, ahead);
      break;
#endif
    default:
      __builtin_unreachable();
  }
}

// How many of `left` panels the next tiles cover.
std::int64_t panels_at_once(std::int64_t left, std::int64_t tokens) {
  if (tokens <= kWideTokens && left >= kWidePanels) return kWidePanels;
  return left >= kPanels ? kPanels : 1;
}

// ---- blocks ------------------------------------------------------------------------------------

template <typename T>
Tile<T> first_tile(const LinearWork& work, std::int64_t panel) {
  const std::int64_t output = panel * kOutputs;
  return {.weights = static_cast<const T*>(work.weights) + panel * work.panel_elements,
          .panel_elements = work.panel_elements,
          .x = work.x,
          .x_stride = work.x_stride,
          .inputs = work.in_features,
          .bias = work.bias != nullptr ? work.bias + output : nullptr,
          .y = work.y + output,
          .y_stride = work.y_stride,
          .outputs = work.out_features - output,
          .resume = false};
}

template <typename T>
void multiply_few(const LinearWork& work) {
  std::int64_t n;
  for (std::int64_t panel = work.panel_begin; panel < work.panel_end; panel += n) {
    n = panels_at_once(work.panel_end - panel, work.ntokens);
    multiply_panels(n, work.ntokens, first_tile<T>(work, panel), {});
  }
}

// Writes `inputs` inputs of one panel as [inputs][16] floats.
template <typename T>
void widen_panel(const T* panel, std::int64_t inputs, float* out) {
  constexpr int kInputs = Weights<T>::kInputs;
  for (std::int64_t i = 0; i < inputs; i += kInputs) {
    F32 w[kInputs][kVectors];
    Weights<T>::get(panel + i * kOutputs, w);
    for (int k = 0; k < kInputs; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        store(out + (i + k) * kOutputs + v * kLanes, w[k][v]);
      }
    }
  }
}

// Weights of panels for some inputs.
struct Piece {
  std::int64_t panel;
  std::int64_t panels;
  std::int64_t input;
  std::int64_t inputs;
};

template <typename T>
Ahead ahead_of(const LinearWork& work, const Piece& piece) {
  const T* first = first_tile<T>(work, piece.panel).weights + piece.input * kOutputs;
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  return {.weights = reinterpret_cast<const char*>(first),
          .panels = piece.panels,
          .panel_bytes = work.panel_elements * kBytes,
          .input_bytes = kOutputs * kBytes};
}

// A piece against all tokens.
template <typename T>
void multiply_piece(const LinearWork& work, const Piece& piece, const Ahead& ahead) {
  constexpr bool kWiden = !__is_same(T, float);
  alignas(64) float widened[kWiden ? kPanels * kInputBlock * kOutputs : 1];
  const Tile<T> stored = first_tile<T>(work, piece.panel);
  const T* weights = stored.weights + piece.input * kOutputs;
  Tile<float> tile{.weights = widened,
                   .panel_elements = kInputBlock * kOutputs,
                   .x = stored.x + piece.input,
                   .x_stride = stored.x_stride,
                   .inputs = piece.inputs,
                   .bias = stored.bias,
                   .y = stored.y,
                   .y_stride = stored.y_stride,
                   .outputs = stored.outputs,
                   .resume = piece.input > 0};
  if constexpr (kWiden) {
    for (std::int64_t p = 0; p < piece.panels; ++p) {
      widen_panel(weights + p * stored.panel_elements, piece.inputs,
                  widened + p * tile.panel_elements);
    }
  } else {
    tile.weights = weights;
    tile.panel_elements = stored.panel_elements;
  }
  multiply_panels(piece.panels, work.ntokens, tile, ahead);
}

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// The extent of blocks that cover `n`, equal but for the last: at most `most` and a multiple of
// `step`, which divides `most`.
std::int64_t block_extent(std::int64_t n, std::int64_t most, std::int64_t step) {
  const std::int64_t blocks = n > most ? (n + most - 1) / most : 1;
  return ((n + blocks - 1) / blocks + step - 1) / step * step;
}

// Of panels before `end`.
Piece piece_at(const LinearWork& work, std::int64_t panel, std::int64_t end, std::int64_t input,
               std::int64_t input_block) {
  return {.panel = panel,
          .panels = end - panel >= kPanels ? kPanels : 1,
          .input = input,
          .inputs = smaller(input_block, work.in_features - input)};
}

template <typename T>
void multiply_many(const LinearWork& work) {
  // Blocks begin at whole lines of x.
  const std::int64_t input_block = block_extent(work.in_features, kInputBlock, 16);
  std::int64_t input = 0;
  do {  // at least once, so that a sum over no inputs gives the bias
    std::int64_t panel = work.panel_begin;
    while (panel < work.panel_end) {
      const Piece piece = piece_at(work, panel, work.panel_end, input, input_block);
      panel += piece.panels;
      Ahead ahead;
      if (panel < work.panel_end) {
        ahead = ahead_of<T>(work, piece_at(work, panel, work.panel_end, input, input_block));
      } else if (input + input_block < work.in_features) {
        ahead = ahead_of<T>(work, piece_at(work, work.panel_begin, work.panel_end,
                                           input + input_block, input_block));
      } else if (panel < work.panels) {
        ahead = ahead_of<T>(work, piece_at(work, panel, work.panels, 0, input_block));
      }
      multiply_piece<T>(work, piece, ahead);
    }
    input += input_block;
  } while (input < work.in_features);
}

template <typename T>
void multiply(const LinearWork& work) {
  if (work.ntokens <= kFewTokens) {
    multiply_few<T>(work);
  } else {
    multiply_many<T>(work);
  }
}

}  // namespace

const LinearKernels& linear_kernels() {
  static constexpr LinearKernels kKernels{multiply<float>, multiply<bf16>, multiply<f16>};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
