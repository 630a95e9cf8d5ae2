// Work per head and chunk: 2 · length · dstate · headdim flops for the state (1 Mflop for
// 64 · 128 · 64) and length² · headdim for the tokens of the chunk (0.26 Mflop), on 32 KB of state,
// 32 KB of C, 16 KB of x and 16 KB of weights that stay in L1 and L2: bound by FMA throughput. The
// exponentials below the diagonal, (length² / 2 + length · kLanes / 2) / kLanes vectors of about 20
// instructions, are a twentieth of it. C·Bᵀ costs length² · dstate flops once for all heads of a
// group.
//
// Six rows (tokens) and four vectors of columns (headdim) are held in registers: first the state's
// rows pass by, each times C_i; then, scaled by the decay since the chunk began, the tokens'.

#include "ops/compute_out/kernels.h"

#include "simd/tile.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

template <int R, int V>
ADDER_TILE void score_tile(const ScoreTile& t, std::int64_t i, std::int64_t j) {
  F32 acc[R][V] = {};
  accumulate<R, V>(acc, t.C + i * t.C_stride, t.C_stride, 1, t.B + j, t.stride, t.dstate);
  float* scores = t.scores + i * t.stride + j;
  unroll<0, R * V>([&](auto n) __attribute__((always_inline)) {
    store(scores + n.value / V * t.stride + n.value % V * kLanes, acc[n.value / V][n.value % V]);
  });
}

void scores(const ScoreTile& t) {
  for_each_tile(
      t.length,
      t.stride, [&]<int R, int V>(std::int64_t i, std::int64_t j) __attribute__((always_inline)) {
        if (j < i + R) score_tile<R, V>(t, i, j);  // else above the diagonal
      });
}

// weights[i][j] = scores[i][j] · 2^(s_i − s_j) · dt_j for j <= i (and some more, never read);
// decays[i] = 2^(s_i).
void weigh(const OutTile& t) {
  for (std::int64_t i = 0; i < t.length; ++i) {
    const float* row = t.scores + i * t.stride;
    float* out = t.weights + i * t.stride;
    const F32 high = set1(t.high[i]);
    const F32 low = set1(t.low[i]);
    for (std::int64_t j = 0; j <= i; j += kLanes) {
      const int lanes = static_cast<int>(t.length - j < kLanes ? t.length - j : kLanes);
      const F32 decay =
          exp2_decay(high - load_n(t.high + j, lanes), low - load_n(t.low + j, lanes));
      store(out + j, load(row + j) * decay * load_n(t.dt + j, lanes));
    }
  }
  for (std::int64_t i = 0; i < t.length; i += kLanes) {
    const int lanes = static_cast<int>(t.length - i < kLanes ? t.length - i : kLanes);
    store(t.decays + i, exp2_decay(load_n(t.high + i, lanes), load_n(t.low + i, lanes)));
  }
}

// Asks for what the next tiles will touch: the rows of y that follow, and x of the next head. Both
// lie in lines that are apart by the width of a token, which no hardware prefetcher sees through.
template <typename T>
ADDER_INLINE void prefetch_rows(const OutTile& t, std::int64_t i, int nrows) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (int r = 0; r < nrows; ++r) {
    if (t.next_x != nullptr) {
      const T* x = static_cast<const T*>(t.next_x) + (i + r) * t.next_x_stride;
      for (std::int64_t p = 0; p < t.headdim; p += kLine) __builtin_prefetch(x + p);
    }
    if (i + nrows + r < t.length) {
      const T* y = static_cast<const T*>(t.y) + (i + nrows + r) * t.y_stride;
      for (std::int64_t p = 0; p < t.headdim; p += kLine) __builtin_prefetch(y + p, 1);
    }
  }
}

// Adds D·x to a tile of `nrows` rows and `width` columns, applies the gate and stores it as y.
template <typename T>
ADDER_TILE void finish(const OutTile& t, std::int64_t i, std::int64_t column, const float* tile,
                       int nrows, int width) {
  for (int r = 0; r < nrows; ++r) {
    const float* x = t.x + (i + r) * t.columns;
    const T* z = t.z == nullptr ? nullptr : static_cast<const T*>(t.z) + (i + r) * t.z_stride;
    T* y = static_cast<T*>(t.y) + (i + r) * t.y_stride;
    for (std::int64_t c = 0; c < width && column + c < t.headdim; c += kLanes) {
      const std::int64_t p = column + c;
      const int lanes = static_cast<int>(t.headdim - p < kLanes ? t.headdim - p : kLanes);
      F32 out = load(tile + r * width + c);
      if (t.D != nullptr) {
        const F32 D = t.D_has_headdim ? load_n(t.D + p, lanes) : set1(*t.D);
        out = fma(D, load(x + p), out);
      }
      if (z != nullptr) out *= silu(lanes == kLanes ? load(z + p) : load_n(z + p, lanes));
      lanes == kLanes ? store(y + p, out) : store_n(y + p, out, lanes);
    }
  }
}

template <typename T, int R, int V>
ADDER_TILE void out_tile(const OutTile& t, std::int64_t i, std::int64_t column) {
  F32 acc[R][V] = {};
  if (t.state != nullptr) {
    accumulate<R, V>(acc, t.C + i * t.C_stride, t.C_stride, 1, t.state + column, t.columns,
                     t.dstate);
    unroll<0, R>([&](auto r) __attribute__((always_inline)) {
      const F32 decay = set1(t.decays[i + r.value]);
      unroll<0, V>([&](auto v) __attribute__((always_inline)) {
        acc[r.value][v.value] *= decay;
        pin(acc[r.value][v.value]);
      });
    });
  }
  const float* weights = t.weights + i * t.stride;
  accumulate<R, V>(acc, weights, t.stride, 1, t.x + column, t.columns, i);
  // The triangle on the diagonal, element by element: a row must not touch later tokens, not even
  // with a weight of zero (which makes NaN of an infinity).
  unroll<0, R>([&](auto k) __attribute__((always_inline)) {
    const float* x = t.x + (i + k.value) * t.columns + column;
    unroll<k.value, R>([&](auto r) __attribute__((always_inline)) {
      const F32 weight = set1(weights[r.value * t.stride + i + k.value]);
      unroll<0, V>([&](auto v) __attribute__((always_inline)) {
        acc[r.value][v.value] = fma(weight, load(x + v.value * kLanes), acc[r.value][v.value]);
      });
    });
  });
  if (t.D != nullptr && t.z == nullptr && column + V * kLanes <= t.headdim) {
    // The common case, from registers: what `finish` does.
    T* y = static_cast<T*>(t.y) + i * t.y_stride + column;
    const float* x = t.x + i * t.columns + column;
    unroll<0, R * V>([&](auto n) __attribute__((always_inline)) {
      constexpr int r = n.value / V;
      constexpr int c = n.value % V * kLanes;
      const F32 D = t.D_has_headdim ? load(t.D + column + c) : set1(*t.D);
      store(y + r * t.y_stride + c, fma(D, load(x + r * t.columns + c), acc[r][n.value % V]));
    });
    return;
  }
  alignas(64) float tile[R * V * kLanes];
  unroll<0, R * V>([&](auto n) __attribute__((always_inline)) {
    store(tile + n.value * kLanes, acc[n.value / V][n.value % V]);
  });
  finish<T>(t, i, column, tile, R, V * kLanes);
}

template <typename T>
void out_of(const OutTile& t) {
  weigh(t);
  for_each_tile(
      t.length, t.columns,
      [&]<int R, int V>(std::int64_t i, std::int64_t column) __attribute__((always_inline)) {
        if (column == 0) prefetch_rows<T>(t, i, R);
        out_tile<T, R, V>(t, i, column);
      });
}

void out(const OutTile& t) {
  switch (t.dtype) {
    case DType::bf16:
      return out_of<bf16>(t);
    case DType::f16:
      return out_of<f16>(t);
    default:
      return out_of<float>(t);
  }
}

}  // namespace

const ComputeOutKernels& compute_out_kernels() {
  static constexpr ComputeOutKernels kKernels{scores, out};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
