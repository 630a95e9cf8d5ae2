#pragma once

// The tiles of AMX: eight registers of 16 rows of 64 bytes, and their matrix products. Only for
// kernels files. With ADDER_AMX_EMULATED the same verbs are plain C++, rounding as the processor
// does, so that the kernels' tests run on processors that have no AMX.

#include "simd/simd.h"

namespace adder::simd {
inline namespace ADDER_TIER {

inline constexpr int kTileRegisters = 8;
inline constexpr int kTileRegisterRows = 16;
inline constexpr int kTileRegisterBytes = 64;  // of a row

/// The extents of all registers, in the form that the processor reads.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  constexpr void set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<std::uint8_t>(row_count);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

#if defined(ADDER_AMX_EMULATED)

struct EmulatedTiles {
  TileConfig config;
  std::uint8_t bytes[kTileRegisters][kTileRegisterRows][kTileRegisterBytes] = {};
};
static thread_local EmulatedTiles tiles;

template <typename T>
T tile_element(int tile, int row, int column) {
  T value;
  std::memcpy(&value, &tiles.bytes[tile][row][column * static_cast<int>(sizeof(T))], sizeof(T));
  return value;
}
template <typename T>
void set_tile_element(int tile, int row, int column, T value) {
  std::memcpy(&tiles.bytes[tile][row][column * static_cast<int>(sizeof(T))], &value, sizeof(T));
}

inline void configure_tiles(const TileConfig& config) { tiles = {.config = config}; }
inline void release_tiles() { tiles = {}; }

template <int kTile>
void tile_zero() {
  std::memset(tiles.bytes[kTile], 0, sizeof(tiles.bytes[kTile]));
}
template <int kTile>
void tile_load(const void* from, std::int64_t stride_bytes) {
  tile_zero<kTile>();
  for (int r = 0; r < tiles.config.rows[kTile]; ++r) {
    std::memcpy(tiles.bytes[kTile][r], static_cast<const char*>(from) + r * stride_bytes,
                tiles.config.row_bytes[kTile]);
  }
}
template <int kTile>
void tile_store(void* to, std::int64_t stride_bytes) {
  for (int r = 0; r < tiles.config.rows[kTile]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride_bytes, tiles.bytes[kTile][r],
                tiles.config.row_bytes[kTile]);
  }
}

// Numbers below the normal ones count as zero, in and out.
inline float flushed(float v) {
  return __builtin_fabsf(v) < __FLT_MIN__ ? __builtin_copysignf(0.0F, v) : v;
}
inline float widened(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float v;
  std::memcpy(&v, &wide, sizeof(v));
  return flushed(v);
}

template <int kC, int kA, int kB>
void tile_dot_bf16() {
  for (int m = 0; m < tiles.config.rows[kC]; ++m) {
    for (int n = 0; n < tiles.config.row_bytes[kC] / 4; ++n) {
      float even = 0;
      float odd = 0;
      for (int k = 0; k < tiles.config.row_bytes[kA] / 4; ++k) {
        const auto a = [&](int i) {
          return widened(tile_element<std::uint16_t>(kA, m, 2 * k + i));
        };
        const auto b = [&](int i) {
          return widened(tile_element<std::uint16_t>(kB, k, 2 * n + i));
        };
        even = flushed(__builtin_fmaf(a(0), b(0), even));
        odd = flushed(__builtin_fmaf(a(1), b(1), odd));
      }
      const float c = flushed(tile_element<float>(kC, m, n));
      set_tile_element(kC, m, n, flushed(c + flushed(even + odd)));
    }
  }
}
template <int kC, int kA, int kB>
void tile_dot_int8() {
  for (int m = 0; m < tiles.config.rows[kC]; ++m) {
    for (int n = 0; n < tiles.config.row_bytes[kC] / 4; ++n) {
      auto c = tile_element<std::int32_t>(kC, m, n);
      for (int k = 0; k < tiles.config.row_bytes[kA]; ++k) {
        c += std::int32_t{tile_element<std::int8_t>(kA, m, k)} *
             tile_element<std::int8_t>(kB, k / 4, 4 * n + k % 4);
      }
      set_tile_element(kC, m, n, c);
    }
  }
}

#else

// Assembly, since the compilers' functions take the register's number as a literal alone.
ADDER_INLINE void configure_tiles(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}
/// At the end, so that switching threads need not save the tiles.
ADDER_INLINE void release_tiles() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
ADDER_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
/// Rows `stride_bytes` apart.
template <int kTile>
ADDER_INLINE void tile_load(const void* from, std::int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride_bytes), "i"(kTile)
               : "memory");
}
template <int kTile>
ADDER_INLINE void tile_store(void* to, std::int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(stride_bytes), "i"(kTile)
               : "memory");
}

/// C[m][n] += Σ_k A[m][k] · B[k / 2][2 n + k % 2], bf16 into f32: the sum over even k and that over
/// odd k, each in order, are added to one another and then to C.
template <int kC, int kA, int kB>
ADDER_INLINE void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
/// C[m][n] += Σ_k A[m][k] · B[k / 4][4 n + k % 4], signed bytes into int32.
template <int kC, int kA, int kB>
ADDER_INLINE void tile_dot_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

#endif

}  // namespace ADDER_TIER
}  // namespace adder::simd
