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

void scores(const ScoreTile& t) {
  for_each_tile(
      t.length,
      t.stride, [&]<int R, int V>(std::int64_t i, std::int64_t j) __attribute__((always_inline)) {
        if (j >= i + R) return;  // above the diagonal
        F32 acc[R][V] = {};
        accumulate<R, V>(acc, t.C + i * t.C_stride, t.C_stride, 1, t.B + j, t.stride, t.dstate);
        for (int r = 0; r < R; ++r) {
          for (int v = 0; v < V; ++v) {
            store(t.scores + (i + r) * t.stride + j + v * kLanes, acc[r][v]);
          }
        }
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

// Adds D·x, applies the gate and stores one vector of y.
template <typename T>
ADDER_INLINE void finish(const OutTile& t, std::int64_t i, std::int64_t column, F32 acc) {
  const std::int64_t left = t.headdim - column;
  if (left <= 0) return;
  const int lanes = static_cast<int>(left < kLanes ? left : kLanes);
  if (t.D != nullptr) {
    const F32 D = t.D_has_headdim ? load_n(t.D + column, lanes) : set1(*t.D);
    acc = fma(D, load(t.x + i * t.columns + column), acc);
  }
  if (t.z != nullptr) {
    const T* z = static_cast<const T*>(t.z) + i * t.z_stride + column;
    acc *= silu(lanes == kLanes ? load(z) : load_n(z, lanes));
  }
  T* y = static_cast<T*>(t.y) + i * t.y_stride + column;
  lanes == kLanes ? store(y, acc) : store_n(y, acc, lanes);
}

template <typename T, int R, int V>
ADDER_INLINE void out_tile(const OutTile& t, std::int64_t i, std::int64_t column) {
  F32 acc[R][V] = {};
  if (t.state != nullptr) {
    accumulate<R, V>(acc, t.C + i * t.C_stride, t.C_stride, 1, t.state + column, t.columns,
                     t.dstate);
    for (int r = 0; r < R; ++r) {
      const F32 decay = set1(t.decays[i + r]);
      for (int v = 0; v < V; ++v) {
        acc[r][v] *= decay;
        pin(acc[r][v]);
      }
    }
  }
  const float* weights = t.weights + i * t.stride;
  accumulate<R, V>(acc, weights, t.stride, 1, t.x + column, t.columns, i);
  // The triangle on the diagonal, element by element: a row must not touch later tokens, not even
  // with a weight of zero (which makes NaN of an infinity).
  for (int k = 0; k < R; ++k) {
    for (int v = 0; v < V; ++v) {
      const F32 x = load(t.x + (i + k) * t.columns + column + v * kLanes);
      for (int r = k; r < R; ++r) {
        acc[r][v] = fma(set1(weights[r * t.stride + i + k]), x, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) finish<T>(t, i + r, column + v * kLanes, acc[r][v]);
  }
}

template <typename T>
void out_of(const OutTile& t) {
  weigh(t);
  for_each_tile(
      t.length, t.columns,
      [&]<int R, int V>(std::int64_t i, std::int64_t column)
          __attribute__((always_inline)) { out_tile<T, R, V>(t, i, column); });
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
