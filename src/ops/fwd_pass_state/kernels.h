#pragma once

#include <cstdint>

#include "adder/dtype.h"
#include "core/cpu_tier.h"

namespace adder::cpu {

/// A tile is a float matrix in scratch memory whose rows are padded to a multiple of this.
inline constexpr std::int64_t kTilePadding = 16;
__attribute__((always_inline)) constexpr std::int64_t padded(std::int64_t n) {
  return (n + kTilePadding - 1) / kTilePadding * kTilePadding;
}

/// One head of one chunk.
struct StateUpdateTile {
  std::int64_t length;  ///< tokens
  std::int64_t dstate;
  std::int64_t columns;  ///< padded headdim
  const float* dt;       ///< (length)
  const float* high;     ///< (length): prefix sum, see chunk_cumsum
  const float* low;
  const float* x;         ///< (length, columns)
  const float* B;         ///< (dstate, B_stride): transposed, tokens adjacent
  std::int64_t B_stride;  ///< a multiple of kTilePadding
  const float* state;     ///< (dstate, columns) before the chunk; null means zero
  float* next_state;      ///< (dstate, columns) after it; may be `state`
  float* weighted_x;      ///< scratch (length, columns)
};

struct FwdPassStateKernels {
  void (*update)(const StateUpdateTile& tile);
  /// `rows` rows of `columns` values of type `dtype` become rows of padded(columns) floats; the
  /// padding is zero.
  void (*widen)(const void* rows, std::int64_t stride, DType dtype, std::int64_t nrows,
                std::int64_t columns, float* tile);
  /// (nrows, columns) of type `dtype` becomes (columns, padded(nrows)) floats; the padding is zero.
  void (*widen_transposed)(const void* rows, std::int64_t stride, DType dtype, std::int64_t nrows,
                           std::int64_t columns, float* tile);
  /// (nrows, columns) with rows `tile_stride` apart becomes (columns, nrows) with rows `stride`
  /// apart.
  void (*transpose_back)(const float* tile, std::int64_t tile_stride, std::int64_t nrows,
                         std::int64_t columns, float* out, std::int64_t stride);
};

ADDER_TIERED_KERNELS(FwdPassStateKernels, fwd_pass_state_kernels)

}  // namespace adder::cpu
