#pragma once

// Tiles of 64 rows and up to 64 columns in shared memory, as the kernels of fwd_pass_state and
// compute_out take them: how they are laid out, brought in and read.
//
// A row of 16-bit elements takes 128 bytes; its 16-byte block b lies at block b ^ (row % 8), so
// that eight rows of one column of blocks, which is what ldmatrix reads, are in different banks. A
// row of floats takes 68 of them: four columns further to the right, rows begin four banks later.

#include <cstdint>

#include "cuda/async_copy.cuh"
#include "cuda/math.cuh"
#include "cuda/vector.cuh"
#include "ops/chunk_cumsum/device_plan.cuh"

namespace adder::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 64;
/// Threads of a block that works on tiles.
inline constexpr int kTileThreads = 128;

template <typename T>
struct SharedTile {
  static constexpr int kBytes = kTileRows * kTileColumns * 2;
  /// Bytes from the tile's beginning to an element.
  static __device__ __forceinline__ int offset(int row, int column) {
    return (row << 7) + (((column >> 3) ^ (row & 7)) << 4) + ((column & 7) << 1);
  }
};

template <>
struct SharedTile<float> {
  static constexpr int kPitch = kTileColumns + 4;
  static constexpr int kBytes = kTileRows * kPitch * 4;
  static __device__ __forceinline__ int offset(int row, int column) {
    return (row * kPitch + column) * 4;
  }
};

/// Hides where a number comes from. Offsets that follow from it are computed where they are used,
/// instead of once for all steps, which would fill the registers.
__device__ __forceinline__ int opaque(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

/// 2^v for a decay among tokens of type T; zero below 2^-126. In float32 to the last bit but one:
/// the special-function unit's two to three bits would show.
template <typename T>
__device__ __forceinline__ float decay_of(float v) {
  if constexpr (sizeof(T) < sizeof(float)) {
    return exp2_approx(v);
  } else {
    if (v < -126.0F) return 0.0F;
    const float whole = rintf(v);
    const float rest = v - whole;  // in [-0.5, 0.5]
    // The series of 2^rest: what it leaves out is below 2^-27.
    float power = 1.5252734e-5F;
    power = fmaf(power, rest, 1.5403530e-4F);
    power = fmaf(power, rest, 1.3333558e-3F);
    power = fmaf(power, rest, 9.6181291e-3F);
    power = fmaf(power, rest, 5.5504109e-2F);
    power = fmaf(power, rest, 0.24022651F);
    power = fmaf(power, rest, 0.69314718F);
    power = fmaf(power, rest, 1.0F);
    return __int_as_float(__float_as_int(power) + (static_cast<int>(whole) << 23));
  }
}

/// Two adjacent elements, the first in an even column.
template <typename T>
__device__ __forceinline__ float2 read_pair(const unsigned char* tile, int row, int column) {
  const unsigned char* at = tile + SharedTile<T>::offset(row, column);
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float2*>(at);
  } else {
    return Pair<T>::to_floats(*reinterpret_cast<const std::uint32_t*>(at));
  }
}

template <typename T>
__device__ __forceinline__ void write_pair(unsigned char* tile, int row, int column, float first,
                                           float second) {
  unsigned char* at = tile + SharedTile<T>::offset(row, column);
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(at) = {first, second};
  } else {
    *reinterpret_cast<std::uint32_t*>(at) = Pair<T>::from_floats(first, second);
  }
}

/// Takes every row that is not padding.
inline constexpr std::int32_t kAnySegment = -1;

/// Where a tile comes from. Rows and columns that are not there, and rows that are not taken, are
/// zero in the tile and not read.
template <typename T>
struct TileSource {
  const T* data;  ///< the first element; any element may stand in for it if there is none
  std::int64_t stride;
  int nrows;
  int ncolumns;
  bool aligned;                            ///< rows begin at multiples of 16 bytes
  const std::int32_t* segments = nullptr;  ///< of the rows, see ChunkPlan; null: takes all
  std::int32_t only_segment = kAnySegment;

  __device__ bool takes(int row) const {
    if (row >= nrows) return false;
    if (segments == nullptr) return true;
    const std::int32_t own = segments[row];
    return only_segment == kAnySegment ? own >= 0 : own == only_segment;
  }
};

/// One access's worth of elements, of which the first `n` are there; `from` may have the alignment
/// of T alone.
__device__ __forceinline__ void copy_unaligned(unsigned char* to, const float* from, int n) {
#pragma unroll
  for (int i = 0; i < kVector<float>; ++i) {
    copy_async_4(to + 4 * i, i < n ? from + i : from, i < n ? 4 : 0);
  }
}
template <typename T>
__device__ __forceinline__ void copy_unaligned(unsigned char* to, const T* from, int n) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t low = 2 * i < n ? from[2 * i].bits : 0U;
    const std::uint32_t high = 2 * i + 1 < n ? from[2 * i + 1].bits : 0U;
    words[i] = low | high << 16;
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

/// Begins to bring in the first kColumns columns of a tile, with all threads of the block.
template <typename T, int kColumns = kTileColumns>
__device__ __forceinline__ void load_tile(unsigned char* tile, const TileSource<T>& from) {
  constexpr int kAccesses = kColumns / kVector<T>;  // of a row
  constexpr int kRounds = kTileRows * kAccesses / kTileThreads;
  const auto thread = static_cast<int>(threadIdx.x);
  const int column = thread % kAccesses * kVector<T>;
  const int count = max(0, min(kVector<T>, from.ncolumns - column));
  const auto copy = [&](int round, auto&& access) {
    const int row = thread / kAccesses + round * (kTileThreads / kAccesses);
    const int n = from.takes(row) ? count : 0;
    access(tile + SharedTile<T>::offset(row, column),
           n == 0 ? from.data : from.data + row * from.stride + column, n);
  };
  if (from.aligned) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      copy(round, [](unsigned char* to, const T* source, int n) {
        copy_async_16(to, source, n * static_cast<int>(sizeof(T)));
      });
    }
  } else {
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      copy(round, [](unsigned char* to, const T* source, int n) { copy_unaligned(to, source, n); });
    }
  }
}

/// What chunk_cumsum and the plan say of 64 tokens of a chunk, for one head.
struct TokenScalars {
  float dt[kTileRows];
  float high[kTileRows];
  float low[kTileRows];
  std::int32_t segments[kTileRows];

  /// The logarithm of the decay from a token to a later one, whose sum is given.
  __device__ float log_decay(int row, float later_high, float later_low) const {
    return (later_high - high[row]) + (later_low - low[row]);
  }
};

/// Where they come from: rows of `width` floats.
struct ScalarSource {
  const float* dt;
  const float* sums;             ///< high, then low
  const std::int32_t* segments;  ///< or null
  std::int64_t width;
};

__device__ __forceinline__ ScalarSource scalars_of_chunk(const DevicePlan& plan, const float* dt,
                                                         const float* dA_cumsum, std::int64_t head,
                                                         std::int64_t c, std::int64_t slot,
                                                         std::int64_t nslots) {
  const std::int64_t row = head * nslots + slot;
  return {dt + row * plan.chunk_size, dA_cumsum + row * 2 * plan.chunk_size,
          plan.segments == nullptr ? nullptr : plan.segments + c * plan.chunk_size,
          plan.chunk_size};
}

/// Begins to bring in those of tokens [first, first + 64); zeros past the row's end.
__device__ __forceinline__ void load_scalars(TokenScalars& to, const ScalarSource& from,
                                             std::int64_t first) {
  const int i = static_cast<int>(threadIdx.x) % kTileRows;
  const bool there = first + i < from.width;
  const std::int64_t token = there ? first + i : 0;
  const int bytes = there ? 4 : 0;
  if (threadIdx.x < kTileRows) {
    copy_async_4(&to.dt[i], from.dt + token, bytes);
    copy_async_4(&to.high[i], from.sums + token, bytes);
  } else {
    copy_async_4(&to.low[i], from.sums + from.width + token, bytes);
    if (from.segments != nullptr) copy_async_4(&to.segments[i], from.segments + token, bytes);
  }
}

}  // namespace adder::cuda
