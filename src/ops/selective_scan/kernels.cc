// Work per token, channel and state: one exponential (11 instructions) and 4 more: dt · A,
// dt · x · B, the update and the sum of C · h; on top of it per token and channel one softplus, one
// SiLU and 16 bytes of x, dt, z and y. With two 512-bit pipes 16 states of 16 channels cost at
// least 16 · 16 / 2 = 128 cycles, softplus and SiLU about 50 more: bound by the vector units.
//
// Vectors run over channels, since channels are what is adjacent in every tensor; the states of a
// vector of channels are registers, so that C · h needs no sum across lanes and B and C are
// broadcast. Vectors over the states of one channel would need such a sum for every token and
// channel, about half as much work again at dstate 16.
//
// Measured on one core of a 2.8 GHz Xeon, 512 tokens, d_inner 1536, dstate 16, per token and vector
// of channels: 64 ns without softplus and gate (4 ns per vector of states), 89 ns with both.
// Without the prefetch of the next tile's rows they are 96 and 150 ns: rows of one tensor lie pages
// apart.

#include "ops/selective_scan/kernels.h"

#include "ops/selective_scan/decay.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

// Half of the tier's registers hold states: 16, 8, 8.
constexpr int kRegisterStates = kLanes == 16 ? 16 : 8;

// What passes between the stages of a few tokens of all vectors of the block; it stays in L1. The
// first and the last stage go through the rows of memory block by block, so that a visit to a row
// reads several adjacent cache lines and not one.
constexpr int kTileTokens = 16;
constexpr int kRow = kMaxScanVectors * kLanes;
struct Tile {
  alignas(64) float dt[kTileTokens * kRow];
  alignas(64) float dt_x[kTileTokens * kRow];
  alignas(64) float y[kTileTokens * kRow];
};

ADDER_INLINE F32 load_lanes(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
ADDER_INLINE int lanes_at(int nchannels, int i) {
  return nchannels - i < kLanes ? nchannels - i : kLanes;
}

// dt after bias and softplus, dt · x, and y = D · x.
void begin_tile(const ScanSpan& span, std::int64_t first, int ntokens, Tile& tile) {
  for (int t = 0; t < ntokens; ++t) {
    const float* x_row = span.x.data + (first + t) * span.x.stride;
    const float* dt_row = span.dt.data + (first + t) * span.dt.stride;
    for (int i = 0; i < span.nchannels; i += kLanes) {
      const int lanes = lanes_at(span.nchannels, i);
      const F32 x = load_lanes(x_row + i, lanes);
      F32 dt = load_lanes(dt_row + i, lanes);
      if (span.dt_bias != nullptr) dt += load_lanes(span.dt_bias + i, lanes);
      if (span.dt_softplus) dt = softplus(dt);
      store(tile.dt + t * kRow + i, dt);
      store(tile.dt_x + t * kRow + i, dt * x);
      store(tile.y + t * kRow + i, span.D != nullptr ? load_lanes(span.D + i, lanes) * x : zero());
    }
  }
}

// The rows that the next tile will need. Strides between tokens are several pages, which no
// hardware prefetcher follows.
ADDER_INLINE void prefetch_rows(const ScanSpan& span, std::int64_t token, int channel) {
  if (token >= span.ntokens) return;
  __builtin_prefetch(span.x.data + token * span.x.stride + channel, 0, 2);
  __builtin_prefetch(span.dt.data + token * span.dt.stride + channel, 0, 2);
  if (span.z.data != nullptr) {
    __builtin_prefetch(span.z.data + token * span.z.stride + channel, 0, 2);
  }
  __builtin_prefetch(span.y + token * span.y_stride + channel, 1, 2);
}

// kStates states from `first_state` on, of the channels from `channel` on, through the tile's
// tokens.
template <int kStates>
void run_states(const ScanSpan& span, std::int64_t first, int ntokens, int channel, int first_state,
                Tile& tile) {
  const std::int64_t packed = channel * span.dstate + first_state * kLanes;
  const float* A = span.decay + packed;
  float* state = span.state + packed;
  F32 h[kStates];
#pragma GCC unroll 16
  for (int n = 0; n < kStates; ++n) h[n] = load(state + n * kLanes);
  for (int t = 0; t < ntokens; ++t) {
    const float* B = span.B.data + (first + t) * span.B.stride + first_state;
    const float* C = span.C.data + (first + t) * span.C.stride + first_state;
    const F32 dt = load(tile.dt + t * kRow + channel);
    const F32 dt_x = load(tile.dt_x + t * kRow + channel);
    F32 sum = load(tile.y + t * kRow + channel);
    if (first_state == 0) prefetch_rows(span, first + kTileTokens + t, channel);
#pragma GCC unroll 16
    for (int n = 0; n < kStates; ++n) {
      h[n] = advance(h[n], decay(dt * load(A + n * kLanes)), dt_x * set1(B[n]));
      sum = fma(C[n], h[n], sum);
    }
    store(tile.y + t * kRow + channel, sum);
  }
#pragma GCC unroll 16
  for (int n = 0; n < kStates; ++n) store(state + n * kLanes, h[n]);
}

// The gate, and y to memory.
void end_tile(const ScanSpan& span, std::int64_t first, int ntokens, const Tile& tile) {
  for (int t = 0; t < ntokens; ++t) {
    const float* z = span.z.data != nullptr ? span.z.data + (first + t) * span.z.stride : nullptr;
    float* to = span.y + (first + t) * span.y_stride;
    for (int i = 0; i < span.nchannels; i += kLanes) {
      const int lanes = lanes_at(span.nchannels, i);
      F32 y = load(tile.y + t * kRow + i);
      if (z != nullptr) y *= silu(load_lanes(z + i, lanes));
      lanes == kLanes ? store(to + i, y) : store_n(to + i, y, lanes);
    }
  }
}

void scan(const ScanSpan& span) {
  Tile tile;
  for (std::int64_t first = 0; first < span.ntokens; first += kTileTokens) {
    const std::int64_t left = span.ntokens - first;
    const int ntokens = left < kTileTokens ? static_cast<int>(left) : kTileTokens;
    begin_tile(span, first, ntokens, tile);
    for (int i = 0; i < span.nchannels; i += kLanes) {
      int n = 0;
      for (; n + kRegisterStates <= span.dstate; n += kRegisterStates) {
        run_states<kRegisterStates>(span, first, ntokens, i, n, tile);
      }
      for (; n + 4 <= span.dstate; n += 4) run_states<4>(span, first, ntokens, i, n, tile);
      for (; n < span.dstate; ++n) run_states<1>(span, first, ntokens, i, n, tile);
    }
    end_tile(span, first, ntokens, tile);
  }
}

void pack(const float* rows, std::int64_t stride, int nchannels, int dstate, float factor,
          float* packed) {
  for (int first = 0; first < nchannels; first += kLanes) {
    for (int i = first; i < first + kLanes; ++i) {
      const float* row = i < nchannels ? rows + i * stride : nullptr;
      float* to = packed + first * dstate + (i - first);
      for (int n = 0; n < dstate; ++n) to[n * kLanes] = row != nullptr ? row[n] * factor : 0.0F;
    }
  }
}

void unpack(const float* packed, int nchannels, int dstate, float* rows, std::int64_t stride) {
  for (int i = 0; i < nchannels; ++i) {
    const float* from = packed + i / kLanes * kLanes * dstate + i % kLanes;
    for (int n = 0; n < dstate; ++n) rows[i * stride + n] = from[n * kLanes];
  }
}

}  // namespace

const SelectiveScanKernels& selective_scan_kernels() {
  static_assert(kLanes <= kMaxScanLanes);
  static constexpr SelectiveScanKernels kKernels{kLanes, scan, pack, unpack};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
