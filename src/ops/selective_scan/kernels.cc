// Work per token, channel and state: one exponential (about 11 instructions) and 4 more: dt · A,
// dt · x · B, the update and the sum of C · h. Memory per token and channel: x, dt, z and y once,
// 16 bytes for dstate times that work: bound by the vector units for any dstate from 4 on. With two
// 512-bit pipes 16 states of 16 channels cost about 16 · 16 / 2 = 128 cycles.
//
// Vectors run over channels, since channels are what is adjacent in every tensor; the states of a
// vector of channels are registers, so that C · h needs no sum across lanes and B and C are
// broadcast. Vectors over the states of one channel would need such a sum for every token and
// channel, which is about as much work again as the exponential at dstate 16.

#include "ops/selective_scan/kernels.h"

#include "ops/selective_scan/decay.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

// Half of the tier's registers hold states: 16, 8, 8.
constexpr int kRegisterStates = kLanes == 16 ? 16 : 8;

// What passes between the stages of a few tokens; it stays in L1.
constexpr int kTileTokens = 32;
struct Tile {
  float dt[kTileTokens * kLanes];
  float dt_x[kTileTokens * kLanes];
  float y[kTileTokens * kLanes];
};

ADDER_INLINE F32 load_lanes(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }

// dt after bias and softplus, dt · x, and y = D · x.
void begin_tile(const ScanSpan& span, std::int64_t first, int ntokens, Tile& tile) {
  const int lanes = span.nchannels;
  const F32 D = span.D != nullptr ? load_n(span.D, lanes) : zero();
  const F32 dt_bias = span.dt_bias != nullptr ? load_n(span.dt_bias, lanes) : zero();
  for (int t = 0; t < ntokens; ++t) {
    const F32 x = load_lanes(span.x.data + (first + t) * span.x.stride, lanes);
    F32 dt = load_lanes(span.dt.data + (first + t) * span.dt.stride, lanes) + dt_bias;
    if (span.dt_softplus) dt = softplus(dt);
    store(tile.dt + t * kLanes, dt);
    store(tile.dt_x + t * kLanes, dt * x);
    store(tile.y + t * kLanes, D * x);
  }
}

// States [first_state, first_state + kStates) through the tile's tokens.
template <int kStates>
void run_states(const ScanSpan& span, std::int64_t first, int ntokens, int first_state,
                Tile& tile) {
  const float* A = span.decay + first_state * kLanes;
  float* state = span.state + first_state * kLanes;
  F32 h[kStates];
#pragma GCC unroll 16
  for (int n = 0; n < kStates; ++n) h[n] = load(state + n * kLanes);
  for (int t = 0; t < ntokens; ++t) {
    const float* B = span.B.data + (first + t) * span.B.stride + first_state;
    const float* C = span.C.data + (first + t) * span.C.stride + first_state;
    const F32 dt = load(tile.dt + t * kLanes);
    const F32 dt_x = load(tile.dt_x + t * kLanes);
    F32 sum = load(tile.y + t * kLanes);
#pragma GCC unroll 16
    for (int n = 0; n < kStates; ++n) {
      h[n] = advance(h[n], decay(dt * load(A + n * kLanes)), dt_x * set1(B[n]));
      sum = fma(C[n], h[n], sum);
    }
    store(tile.y + t * kLanes, sum);
  }
#pragma GCC unroll 16
  for (int n = 0; n < kStates; ++n) store(state + n * kLanes, h[n]);
}

// The gate, and y to memory.
void end_tile(const ScanSpan& span, std::int64_t first, int ntokens, const Tile& tile) {
  const int lanes = span.nchannels;
  for (int t = 0; t < ntokens; ++t) {
    F32 y = load(tile.y + t * kLanes);
    if (span.z.data != nullptr) {
      y *= silu(load_lanes(span.z.data + (first + t) * span.z.stride, lanes));
    }
    float* to = span.y + (first + t) * span.y_stride;
    lanes == kLanes ? store(to, y) : store_n(to, y, lanes);
  }
}

void scan(const ScanSpan& span) {
  Tile tile;
  for (std::int64_t first = 0; first < span.ntokens; first += kTileTokens) {
    const std::int64_t left = span.ntokens - first;
    const int ntokens = left < kTileTokens ? static_cast<int>(left) : kTileTokens;
    begin_tile(span, first, ntokens, tile);
    int n = 0;
    for (; n + kRegisterStates <= span.dstate; n += kRegisterStates) {
      run_states<kRegisterStates>(span, first, ntokens, n, tile);
    }
    for (; n + 4 <= span.dstate; n += 4) run_states<4>(span, first, ntokens, n, tile);
    for (; n < span.dstate; ++n) run_states<1>(span, first, ntokens, n, tile);
    end_tile(span, first, ntokens, tile);
  }
}

void pack(const float* rows, std::int64_t stride, int nchannels, int dstate, float factor,
          float* packed) {
  for (int n = 0; n < dstate; ++n) {
    for (int i = 0; i < kLanes; ++i) {
      packed[n * kLanes + i] = i < nchannels ? rows[i * stride + n] * factor : 0.0F;
    }
  }
}

void unpack(const float* packed, int nchannels, int dstate, float* rows, std::int64_t stride) {
  for (int i = 0; i < nchannels; ++i) {
    for (int n = 0; n < dstate; ++n) rows[i * stride + n] = packed[n * kLanes + i];
  }
}

}  // namespace

const SelectiveScanKernels& selective_scan_kernels() {
  static_assert(kLanes <= kMaxScanLanes);
  static constexpr SelectiveScanKernels kKernels{kLanes, scan, pack, unpack};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
