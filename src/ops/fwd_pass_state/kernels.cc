// Work per head and chunk: 2 · length · dstate · headdim flops (1 Mflop for 64 · 128 · 64) on a
// state of dstate · headdim floats (32 KB) that is read and written once, and two tiles that stay
// in L1 (16 KB of x) and L2 (32 KB of B, shared by the heads of a group): bound by FMA throughput.
//
// The state is transposed, (dstate, headdim): six rows and four vectors of columns are held in
// registers while the tokens pass by, each adding B_j[row] · weighted_x_j[columns].

#include "ops/fwd_pass_state/kernels.h"

#include "simd/tile.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

template <int R, int V>
ADDER_TILE void update_tile(const StateUpdateTile& t, float decay, std::int64_t row,
                            std::int64_t column) {
  F32 acc[R][V];
  const float* state = t.state == nullptr ? nullptr : t.state + row * t.columns + column;
  unroll<0, R * V>([&](auto n) __attribute__((always_inline)) {
    constexpr int r = n.value / V;
    constexpr int v = n.value % V;
    acc[r][v] = state == nullptr ? zero() : load(state + r * t.columns + v * kLanes) * set1(decay);
    pin(acc[r][v]);
  });
  accumulate<R, V>(acc, t.B + row * t.B_stride, t.B_stride, 1, t.weighted_x + column, t.columns,
                   t.length);
  float* next_state = t.next_state + row * t.columns + column;
  unroll<0, R * V>([&](auto n) __attribute__((always_inline)) {
    constexpr int r = n.value / V;
    constexpr int v = n.value % V;
    store(next_state + r * t.columns + v * kLanes, acc[r][v]);
  });
}

void update(const StateUpdateTile& t) {
  const float last_high = t.high[t.length - 1];
  const float last_low = t.low[t.length - 1];
  for (std::int64_t j = 0; j < t.length; j += kLanes) {
    const int lanes = static_cast<int>(t.length - j < kLanes ? t.length - j : kLanes);
    const F32 decay = exp2_decay(set1(last_high) - load_n(t.high + j, lanes),
                                 set1(last_low) - load_n(t.low + j, lanes));
    float weight[kLanes];
    store(weight, decay * load_n(t.dt + j, lanes));
    for (int lane = 0; lane < lanes; ++lane) {
      const F32 factor = set1(weight[lane]);
      const float* x = t.x + (j + lane) * t.columns;
      float* weighted_x = t.weighted_x + (j + lane) * t.columns;
      for (std::int64_t c = 0; c < t.columns; c += kLanes)
        store(weighted_x + c, load(x + c) * factor);
    }
  }
  const float decay = exp2_decay(set1(last_high), set1(last_low))[0];
  for_each_tile(
      t.dstate, t.columns,
      [&]<int R, int V>(std::int64_t row, std::int64_t column)
          __attribute__((always_inline)) { update_tile<R, V>(t, decay, row, column); });
}

template <typename T>
ADDER_INLINE void widen_rows(const T* rows, std::int64_t stride, std::int64_t nrows,
                             std::int64_t columns, float* tile) {
  const std::int64_t width = padded(columns);
  for (std::int64_t r = 0; r < nrows; ++r) {
    const T* in = rows + r * stride;
    float* out = tile + r * width;
    std::int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) store(out + c, load(in + c));
    if (c < columns) {
      store(out + c, load_n(in + c, static_cast<int>(columns - c)));
      c += kLanes;
    }
    for (; c < width; c += kLanes) store(out + c, zero());
  }
}

// Calls `body(pointer of the element type)`.
template <typename Body>
ADDER_INLINE void with_type(const void* p, DType dtype, Body&& body) {
  switch (dtype) {
    case DType::bf16:
      return body(static_cast<const bf16*>(p));
    case DType::f16:
      return body(static_cast<const f16*>(p));
    default:
      return body(static_cast<const float*>(p));
  }
}

void widen(const void* rows, std::int64_t stride, DType dtype, std::int64_t nrows,
           std::int64_t columns, float* tile) {
  with_type(
      rows, dtype, [&](const auto* typed) __attribute__((always_inline)) {
        widen_rows(typed, stride, nrows, columns, tile);
      });
}

void widen_transposed(const void* rows, std::int64_t stride, DType dtype, std::int64_t nrows,
                      std::int64_t columns, float* tile) {
  with_type(
      rows, dtype, [&](const auto* typed) __attribute__((always_inline)) {
        transpose(typed, stride, nrows, columns, tile, padded(nrows), padded(nrows));
      });
}

void transpose_back(const float* tile, std::int64_t tile_stride, std::int64_t nrows,
                    std::int64_t columns, float* out, std::int64_t stride) {
  transpose(tile, tile_stride, nrows, columns, out, stride, nrows);
}

}  // namespace

const FwdPassStateKernels& fwd_pass_state_kernels() {
  static constexpr FwdPassStateKernels kKernels{update, widen, widen_transposed, transpose_back};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
