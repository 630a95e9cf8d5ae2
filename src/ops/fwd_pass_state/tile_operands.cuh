#pragma once

// Operands of products on tensor cores (cuda/tensor_core.cuh) out of tiles in shared memory
// (token_tile.cuh), for an arithmetic A. Each is 16 × 16 elements; `lane` is the caller's, or an
// opaque copy of it.
//
// Floats are read one by one or in pairs. A column of pairs, which is what operands along the rows
// of a tile need, takes twice the shortest time: eight rows of a column of pairs lie in half of the
// banks.

#include "cuda/tensor_core.cuh"
#include "ops/fwd_pass_state/token_tile.cuh"

namespace adder::cuda {

template <typename A>
struct TileOperands {
  using T = ElementOf<A>;
  using Stored = typename TensorCore<A>::Stored;

  /// Operand A from a tile of (row, k).
  static __device__ __forceinline__ void load_a(Stored (&a)[4], const unsigned char* tile, int row,
                                                int k, int lane) {
    if constexpr (kHalf) {
      ldmatrix_x4(a, tile + SharedTile<T>::offset(row + (lane & 15), k + (lane >> 4 << 3)));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = stored(read_pair<T>(tile, row + (lane >> 2) + (i & 1) * 8,
                                   k + ((lane & 3) << 1) + (i >> 1) * 8));
      }
    }
  }

  /// The same from a tile of (k, row), as floats: what is to be computed with first.
  static __device__ __forceinline__ void load_a_transposed(float2 (&a)[4],
                                                           const unsigned char* tile, int row,
                                                           int k, int lane) {
    if constexpr (kHalf) {
      std::uint32_t pairs[4];
      ldmatrix_x4_trans(
          pairs, tile + SharedTile<T>::offset(k + (lane >> 4 << 3) + (lane & 7), row + (lane & 8)));
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = Pair<T>::to_floats(pairs[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = read_column(tile, k + (i >> 1) * 8, row + (i & 1) * 8, lane);
      }
    }
  }

  /// Operands B of columns [column, column + 8), in b[0] and b[1], and of the next 8, from a tile
  /// of (column, k).
  static __device__ __forceinline__ void load_b(Stored (&b)[4], const unsigned char* tile,
                                                int column, int k, int lane) {
    if constexpr (kHalf) {
      ldmatrix_x4(
          b, tile + SharedTile<T>::offset(column + (lane & 7) + (lane >> 4 << 3), k + (lane & 8)));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b[i] = stored(read_pair<T>(tile, column + (lane >> 2) + (i >> 1) * 8,
                                   k + ((lane & 3) << 1) + (i & 1) * 8));
      }
    }
  }

  /// The same from a tile of (k, column).
  static __device__ __forceinline__ void load_b_transposed(Stored (&b)[4],
                                                           const unsigned char* tile, int column,
                                                           int k, int lane) {
    if constexpr (kHalf) {
      ldmatrix_x4_trans(b,
                        tile + SharedTile<T>::offset(k + (lane & 15), column + (lane >> 4 << 3)));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b[i] = stored(read_column(tile, k + (i & 1) * 8, column + (i >> 1) * 8, lane));
      }
    }
  }

 private:
  static constexpr bool kHalf = sizeof(T) == 2;

  static __device__ __forceinline__ Stored stored(float2 pair) {
    return TensorCore<A>::computed(pair.x, pair.y);
  }

  /// The lane's pair of an 8 × 8 matrix of floats, one below the other.
  static __device__ __forceinline__ float2 read_column(const unsigned char* tile, int row,
                                                       int column, int lane) {
    const auto* at = reinterpret_cast<const float*>(
        tile + SharedTile<float>::offset(row + ((lane & 3) << 1), column + (lane >> 2)));
    return {at[0], at[SharedTile<float>::kPitch]};
  }
};

}  // namespace adder::cuda
