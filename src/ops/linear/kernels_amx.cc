// bf16 weights times x rounded to bf16, by AMX. A tile of 32 inputs × 16 outputs of the packed
// weight is a B operand as it lies there, 16 lines one after another. An instruction multiplies 16
// tokens by it, in 16 cycles: 32 times the operations of an FMA of 512 bits.
//
// Two tiles of tokens × two panels make four sums, whose four products need two loads each of x and
// of the weight: 32 cycles of loads, from L1, in 64 of products. So blocks are of 512 inputs: the
// weights of two panels (32 KB) stay in L1 while x, rounded once per block, streams from L2.
//
// One token takes the same instructions, 15 rows of which are zeros: each weight passes once, as
// fast as memory is. So a token's sums take the same steps of 32 inputs in the same order, whatever
// is multiplied along; between blocks they rest in y, as the floats that they are.

#include "ops/linear/bf16_block.h"
#include "ops/linear/kernels.h"
#include "simd/amx.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kOutputs = kBf16Outputs;
constexpr int kTokens = kTileRegisterRows;
constexpr int kStep = kBf16Step;  // inputs of a tile
constexpr std::int64_t kInputs = 512;
constexpr std::int64_t kTileElements = kStep * kOutputs;
constexpr int kPrefetchTiles = 2;  // weights' tiles ahead, per panel, with few tokens
static_assert(kLanes == kOutputs);

// Registers: sums 2 m + n, x 4 + m, weights 6 + n, for tile m of tokens and panel n.
constexpr int kX = 4;
constexpr int kWeights = 6;

struct Tile {
  const bf16* weights;  // first panel, first input of the block
  std::int64_t panel_elements;
  const bf16* rest;  // of both panels, weights of the last inputs where these are not a whole step
  const bf16* x;     // first token, rounded
  std::int64_t x_stride;
  std::int64_t steps;  // whole ones
  const float* start;  // of the tile's first token and output, or null for zero
  std::int64_t start_stride;
  float* y;  // of the tile's first token and output
  std::int64_t y_stride;
  std::int64_t tokens;   // of this tile that exist
  std::int64_t outputs;  // that exist from the tile's first on
};

// What is there of the tile of sums at token `t` and output `o`.
struct Part {
  std::int64_t tokens;
  std::int64_t outputs;
  bool is_whole() const { return tokens == kTokens && outputs == kOutputs; }
};
ADDER_INLINE Part part_at(const Tile& tile, std::int64_t t, std::int64_t o) {
  return {.tokens = smaller(tile.tokens - t, kTokens),
          .outputs = smaller(tile.outputs - o, kOutputs)};
}

template <int kSum>
ADDER_INLINE void begin_sum(const Tile& tile, std::int64_t t, std::int64_t o) {
  if (tile.start == nullptr) return tile_zero<kSum>();
  const Part part = part_at(tile, t, o);
  const float* from = tile.start + t * tile.start_stride + o;
  if (part.is_whole()) return tile_load<kSum>(from, tile.start_stride * 4);
  alignas(64) float rows[kTokens][kOutputs] = {};
  for (std::int64_t r = 0; r < part.tokens; ++r) {
    store(rows[r], load_n(from + r * tile.start_stride, static_cast<int>(part.outputs)));
  }
  tile_load<kSum>(rows, sizeof(rows[0]));
}

template <int kSum>
ADDER_INLINE void end_sum(const Tile& tile, std::int64_t t, std::int64_t o) {
  const Part part = part_at(tile, t, o);
  float* to = tile.y + t * tile.y_stride + o;
  if (part.is_whole()) return tile_store<kSum>(to, tile.y_stride * 4);
  alignas(64) float rows[kTokens][kOutputs];
  tile_store<kSum>(rows, sizeof(rows[0]));
  for (std::int64_t r = 0; r < part.tokens; ++r) {
    store_n(to + r * tile.y_stride, load(rows[r]), static_cast<int>(part.outputs));
  }
}

// One step: kM tiles of tokens, kN panels whose weights are `panel_elements` apart.
template <int kM, int kN>
ADDER_INLINE void step(const bf16* x, std::int64_t x_stride, const bf16* weights,
                       std::int64_t panel_elements) {
  tile_load<kX>(x, x_stride * 2);
  tile_load<kWeights>(weights, 64);
  tile_dot_bf16<0, kX, kWeights>();
  if constexpr (kN == 2) {
    tile_load<kWeights + 1>(weights + panel_elements, 64);
    tile_dot_bf16<1, kX, kWeights + 1>();
  }
  if constexpr (kM == 2) {
    tile_load<kX + 1>(x + kTokens * x_stride, x_stride * 2);
    tile_dot_bf16<2, kX + 1, kWeights>();
    if constexpr (kN == 2) tile_dot_bf16<3, kX + 1, kWeights + 1>();
  }
}

template <int kM, int kN, bool kBegin>
ADDER_INLINE void each_sum(const Tile& tile) {
  const auto visit = [&]<int kSum>() __attribute__((always_inline)) {
    if constexpr (kSum / 2 < kM && kSum % 2 < kN) {
      constexpr std::int64_t kToken = kSum / 2 * kTokens;
      constexpr std::int64_t kOutput = kSum % 2 * kOutputs;
      if constexpr (kBegin) {
        begin_sum<kSum>(tile, kToken, kOutput);
      } else {
        end_sum<kSum>(tile, kToken, kOutput);
      }
    }
  };
  visit.template operator()<0>();
  visit.template operator()<1>();
  visit.template operator()<2>();
  visit.template operator()<3>();
}

template <int kM, int kN>
__attribute__((noinline)) void multiply_tile(const Tile& tile) {
  each_sum<kM, kN, true>(tile);
  const bf16* x = tile.x;
  const bf16* weights = tile.weights;
  for (std::int64_t s = 0; s < tile.steps; ++s) {
    if constexpr (kM == 1) {
      for (int n = 0; n < kN; ++n) {
        const bf16* ahead = weights + n * tile.panel_elements + kPrefetchTiles * kTileElements;
        for (int line = 0; line < kTileElements; line += 32) __builtin_prefetch(ahead + line);
      }
    }
    step<kM, kN>(x, tile.x_stride, weights, tile.panel_elements);
    x += kStep;
    weights += kTileElements;
  }
  if (tile.rest != nullptr) step<kM, kN>(x, tile.x_stride, tile.rest, kTileElements);
  each_sum<kM, kN, false>(tile);
}

template <int kN>
void multiply_panels(std::int64_t tokens, Tile tile) {
  while (tokens > 0) {
    const std::int64_t n = tokens > kTokens ? 2 * kTokens : kTokens;
    tile.tokens = tokens;
    if (n > kTokens) {
      multiply_tile<2, kN>(tile);
    } else {
      multiply_tile<1, kN>(tile);
    }
    tile.x += n * tile.x_stride;
    tile.y += n * tile.y_stride;
    if (tile.start != nullptr) tile.start += n * tile.start_stride;
    tokens -= n;
  }
}

// All panels against a block of rounded x.
void multiply_block(const LinearWork& work, const bf16* x, std::int64_t width, std::int64_t token,
                    std::int64_t tokens, std::int64_t input) {
  const std::int64_t inputs = smaller(width, work.in_features - input);
  const std::int64_t steps = inputs / kStep;
  const std::int64_t rest_pairs = (inputs % kStep + 1) / 2;
  alignas(64) bf16 rest[2 * kTileElements];
  alignas(64) float bias[2 * kOutputs];
  std::int64_t n;
  for (std::int64_t panel = work.panel_begin; panel < work.panel_end; panel += n) {
    n = work.panel_end - panel >= 2 ? 2 : 1;
    const std::int64_t output = panel * kOutputs;
    const bf16* weights =
        static_cast<const bf16*>(work.weights) + panel * work.panel_elements + input * kOutputs;
    if (rest_pairs > 0) {
      std::memset(static_cast<void*>(rest), 0, sizeof(rest));
      for (std::int64_t p = 0; p < n; ++p) {
        std::memcpy(static_cast<void*>(rest + p * kTileElements),
                    weights + p * work.panel_elements + steps * kTileElements,
                    static_cast<std::size_t>(rest_pairs) * 2 * kOutputs * sizeof(bf16));
      }
    }
    float* y = work.y + token * work.y_stride + output;
    Tile tile{.weights = weights,
              .panel_elements = work.panel_elements,
              .rest = rest_pairs > 0 ? rest : nullptr,
              .x = x,
              .x_stride = width,
              .steps = steps,
              .start = nullptr,
              .start_stride = 0,
              .y = y,
              .y_stride = work.y_stride,
              .tokens = tokens,
              .outputs = work.out_features - output};
    if (input > 0) {
      tile.start = y;
      tile.start_stride = work.y_stride;
    } else if (work.bias != nullptr) {
      // A copy that whole tiles can read.
      for (std::int64_t o = 0; o < n * kOutputs; o += kLanes) {
        const std::int64_t there = smaller(tile.outputs - o, kLanes);
        store(bias + o, load_n(work.bias + output + o, static_cast<int>(there)));
      }
      tile.start = bias;
    }
    if (n == 2) {
      multiply_panels<2>(tokens, tile);
    } else {
      multiply_panels<1>(tokens, tile);
    }
  }
}

constexpr TileConfig make_config() {
  TileConfig config;
  for (int i = 0; i < kTileRegisters; ++i) config.set(i, kTileRegisterRows, kTileRegisterBytes);
  return config;
}

}  // namespace

void multiply_rounded(const LinearWork& work) {
  static constexpr TileConfig kConfig = make_config();
  alignas(64) bf16 x[kBf16Scratch];
  const Bf16Cut cut = cut_of(work, 2 * kTokens, kInputs);
  configure_tiles(kConfig);
  for (std::int64_t token = 0; token < work.ntokens; token += cut.tokens) {
    const std::int64_t tokens = smaller(cut.tokens, work.ntokens - token);
    const std::int64_t rows = rounded_up(tokens, kTokens);
    std::int64_t input = 0;
    do {  // at least once, so that a sum over no inputs gives the bias
      round_block(work, token, tokens, input, cut.inputs, x);
      std::memset(static_cast<void*>(x + tokens * cut.inputs), 0,
                  static_cast<std::size_t>((rows - tokens) * cut.inputs) * sizeof(bf16));
      multiply_block(work, x, cut.inputs, token, tokens, input);
      input += cut.inputs;
    } while (input < work.in_features);
  }
  release_tiles();
}

}  // namespace adder::cpu::ADDER_TIER
