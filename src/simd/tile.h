#pragma once

// Small matrix products, transposes and decays on float tiles in L1: the vocabulary that the
// chunked state-space kernels share. Like simd.h, only for kernels.cc files.

#include "simd/simd.h"

namespace adder::simd {
inline namespace ADDER_TIER {

// A register tile is kTileRows rows of kTileVectors vectors: 24 of 32 accumulators with AVX-512, 12
// of 16 registers elsewhere. Enough independent chains to cover the latency of an FMA, and two to
// three FMAs for every load.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = kLanes == 16 ? 4 : 2;

/// Columns of a padded tile are a multiple of this in every tier.
inline constexpr std::int64_t kTileColumns = 16;

/// Hides where a value comes from. Without it the compiler may contract a · b + c · d in either of
/// two ways, and rows of one tile could round differently from rows of another.
ADDER_INLINE void pin(F32& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
}

/// Keeps tiles apart from one another: inlined into one function, they compete for registers.
#define ADDER_TILE __attribute__((noinline))

template <int I>
struct Index {
  static constexpr int value = I;
};

/// Calls f(Index<I>()) for I in [Begin, End), unrolled for certain: register tiles must never be
/// indexed at run time, which would put them in memory.
template <int Begin, int End, typename Function>
ADDER_INLINE void unroll(const Function& f) {
  if constexpr (Begin < End) {
    f(Index<Begin>());
    unroll<Begin + 1, End>(f);
  }
}

/// acc[r][v] += Σ_k a[r · a_row + k · a_k] · b[k · b_k + v · kLanes ...], k ascending in [0, n).
template <int R, int V>
ADDER_INLINE void accumulate(F32 (&acc)[R][V], const float* a, std::int64_t a_row, std::int64_t a_k,
                             const float* b, std::int64_t b_k, std::int64_t n) {
  for (std::int64_t k = 0; k < n; ++k) {
    F32 row[V];
    for (int v = 0; v < V; ++v) row[v] = load(b + k * b_k + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const F32 factor = set1(a[r * a_row + k * a_k]);
      for (int v = 0; v < V; ++v) acc[r][v] = fma(factor, row[v], acc[r][v]);
    }
  }
}

/// Runs `tile.operator()<R, V>(row, column)` over rows [0, rows) and columns [0, columns), columns
/// a multiple of kTileColumns.
template <typename TileFunction>
ADDER_INLINE void for_each_tile(std::int64_t rows, std::int64_t columns, TileFunction&& tile) {
  const auto strip = [&]<int V>(std::int64_t column) __attribute__((always_inline)) {
    std::int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows) tile.template operator()<kTileRows, V>(i, column);
    switch (rows - i) {
      case 5:
        return tile.template operator()<5, V>(i, column);
      case 4:
        return tile.template operator()<4, V>(i, column);
      case 3:
        return tile.template operator()<3, V>(i, column);
      case 2:
        return tile.template operator()<2, V>(i, column);
      case 1:
        return tile.template operator()<1, V>(i, column);
      default:
        return;
    }
  };
  std::int64_t column = 0;
  for (; column + kTileVectors * kLanes <= columns; column += kTileVectors * kLanes) {
    strip.template operator()<kTileVectors>(column);
  }
  if constexpr (kTileVectors * kLanes > kTileColumns) {
    for (; column < columns; column += kLanes) strip.template operator()<1>(column);
  }
}

// ---- transposes --------------------------------------------------------------------------------

// Alternate lanes of the lower (upper) halves of a and b: a0 b0 a1 b1 ...
#if defined(__AVX512F__)
ADDER_INLINE F32 interleave_low(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
ADDER_INLINE F32 interleave_high(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}
#elif defined(__AVX2__)
ADDER_INLINE F32 interleave_low(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
ADDER_INLINE F32 interleave_high(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
ADDER_INLINE F32 interleave_low(F32 a, F32 b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
ADDER_INLINE F32 interleave_high(F32 a, F32 b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

/// out[c][r] = in[r][c] for a (rows, columns) matrix, widened to float. Where the last vector of a
/// row of `out` reaches beyond `rows`, zeros are written as far as `width`, rows <= width.
template <typename T>
ADDER_INLINE void transpose(const T* in, std::int64_t in_stride, std::int64_t rows,
                            std::int64_t columns, float* out, std::int64_t out_stride,
                            std::int64_t width) {
  const auto lanes_left = [](std::int64_t end, std::int64_t i) __attribute__((always_inline)) {
    return static_cast<int>(end - i < kLanes ? end - i : kLanes);
  };
  for (std::int64_t r = 0; r < width; r += kLanes) {
    const int write = lanes_left(width, r);
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      const int read = lanes_left(columns, c);
      F32 block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const T* p = in + (r + i) * in_stride + c;
        block[i] = r + i >= rows ? zero() : read == kLanes ? load(p) : load_n(p, read);
      }
      // log2(kLanes) perfect shuffles of rows and lanes make a transpose.
      for (int step = 1; step < kLanes; step *= 2) {
        F32 next[kLanes];
        for (int i = 0; i < kLanes / 2; ++i) {
          next[2 * i] = interleave_low(block[i], block[i + kLanes / 2]);
          next[2 * i + 1] = interleave_high(block[i], block[i + kLanes / 2]);
        }
        for (int i = 0; i < kLanes; ++i) block[i] = next[i];
      }
      for (int i = 0; i < read; ++i) {
        float* p = out + (c + i) * out_stride + r;
        write == kLanes ? store(p, block[i]) : store_n(p, block[i], write);
      }
    }
  }
}

// ---- decays ------------------------------------------------------------------------------------

/// 2^(high + low) for a value that is at most zero but for rounding (what is above zero counts as
/// zero), given as a float and a much smaller rest. Relative error at most 2 ulp; results below
/// 2^-126 are zero; NaN stays.
ADDER_INLINE F32 exp2_decay(F32 high, F32 low) {
  const F32 x = min(zero(), max(set1(-150.0F), high));
  const F32 n = round_small(x);
  const F32 r = ((x - n) + low) * set1(0.693147180559945309F);
  F32 p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  p = fma(p, r * r, r) + set1(1.0F);
  const F32 scaled = p * bits_as_f32((to_i32(n) + 127) << 23);
  return select(x < set1(-126.0F), zero(), scaled);
}

}  // namespace ADDER_TIER
}  // namespace adder::simd
