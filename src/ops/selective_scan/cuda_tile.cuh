#pragma once

// A tile of tokens in shared memory, and how a thread moves its part of one from and to memory.

#include <cstdint>

#include "cuda/vector.cuh"
#include "ops/selective_scan/cuda_kernel.h"

namespace adder::cuda {

/// Elements of one access of a thread: channels, or states of B and C.
constexpr int kScanVector = 4;

template <int kLanes, int kStates>
struct ScanTile {
  static constexpr int kChannels = kScanThreads / kLanes;
  static constexpr int kDState = kLanes * kStates;  ///< dstate, rounded up
  /// Partial sums of a token and lane, with a gap that keeps lanes of a warp on different banks.
  /// Not quite with 16 lanes, of which two share a bank: the gap that parts them, 2, would leave
  /// rows that cannot be read as float4.
  static constexpr int kRow = kLanes == 1 ? kChannels : kChannels + (kLanes > 8 ? 4 : 32 / kLanes);

  alignas(16) float2 steps[kScanTokens][kChannels];  ///< dt, dt x
  alignas(16) float B[kScanTokens][kDState];
  alignas(16) float C[kScanTokens][kDState];
  alignas(16) float y[kScanTokens][kLanes][kRow];
};

/// Four elements of which the first `count` exist; the rest is zero. `vectors`: it is all or none,
/// at an address that is a multiple of their size.
template <typename T>
__device__ __forceinline__ Pack<T, kScanVector> load_some(const T* from, int count, bool vectors) {
  Pack<T, kScanVector> pack{};
  if (vectors) {
    if (count > 0) pack = load<kScanVector>(from);
    return pack;
  }
  unsigned bits[kScanVector] = {};
#pragma unroll
  for (int i = 0; i < kScanVector; ++i) {
    if (i < count) bits[i] = load<1>(from + i).memory;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    pack.memory = make_uint4(bits[0], bits[1], bits[2], bits[3]);
  } else {
    pack.memory = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
  }
  return pack;
}

template <typename T>
__device__ __forceinline__ void store_some(T* to, const float (&values)[kScanVector], int count,
                                           bool vectors) {
  if (vectors) {
    if (count > 0) store(to, from_floats<T, kScanVector>(values));
    return;
  }
#pragma unroll
  for (int i = 0; i < kScanVector; ++i) {
    const float one[1] = {values[i]};
    if (i < count) store(to + i, from_floats<T, 1>(one));
  }
}

}  // namespace adder::cuda
