#pragma once

// What the threads of a block find out together. All in integers: the order does not matter.

#include <cstdint>

#include "cuda/math.cuh"
#include "ops/sampling/cuda_kernel.h"

namespace adder::cuda::sampling {

inline constexpr int kWarps = kThreads / kWarpSize;
/// Digits of a key that are told apart at a time.
inline constexpr int kDigits = 2048;
/// Tokens that a block can sort.
inline constexpr int kListed = kThreads;
inline constexpr int kMaxGroups = static_cast<int>(kMaxSampledVocabSize) / kGroupTokens;

/// Shared memory. Behind it: Row::recent.
struct Shared {
  union {
    struct {  // 64-bit sums in halves
      std::uint32_t low[kDigits], high[kDigits];
    } histogram;
    struct {
      std::uint32_t maxima[kMaxGroups];
      std::uint64_t found[kListed], sorted[kListed];
    } list;
  };
  std::uint64_t sums[kWarps];
  Findings findings[kWarps];
  std::uint64_t before;
  int count;
  std::uint32_t digit, id, last;
};

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }

/// What all lanes found together, in every lane.
__device__ __forceinline__ Findings warp_merge(const Findings& f) {
  Findings out;
  out.best_key = __reduce_max_sync(kFullWarp, f.best_key);
  out.best_id = __reduce_min_sync(kFullWarp, f.best_key == out.best_key ? f.best_id : kNone);
  out.bad_raw = __reduce_min_sync(kFullWarp, f.bad_raw);
  out.bad = __reduce_min_sync(kFullWarp, f.bad);
  out.bad_recent = __reduce_min_sync(kFullWarp, f.bad_recent);
  out.flags = __reduce_or_sync(kFullWarp, f.flags);
  return out;
}

__device__ __forceinline__ Findings nothing() { return {0, kNone, kNone, kNone, kNone, 0}; }

/// What all threads found together, in every thread.
__device__ __forceinline__ Findings block_merge(const Findings& f, Shared& shared) {
  const Findings mine = warp_merge(f);
  if (lane_index() == 0) shared.findings[warp_index()] = mine;
  __syncthreads();
  const Findings all =
      warp_merge(lane_index() < kWarps ? shared.findings[lane_index()] : nothing());
  __syncthreads();
  return all;
}

__device__ __forceinline__ std::uint64_t warp_sum(std::uint64_t v) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    v += __shfl_xor_sync(kFullWarp, v, distance);
  }
  return v;
}

/// A sum over the threads before this one, and over all.
struct Scan {
  std::uint64_t before, total;
};

__device__ __forceinline__ Scan block_scan(std::uint64_t v, Shared& shared) {
  std::uint64_t inclusive = v;
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const std::uint64_t other =
        __shfl_up_sync(kFullWarp, inclusive, static_cast<unsigned>(distance));
    if (lane_index() >= distance) inclusive += other;
  }
  if (lane_index() == kWarpSize - 1) shared.sums[warp_index()] = inclusive;
  __syncthreads();
  Scan out{inclusive - v, 0};
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp == warp_index()) out.before += out.total;
    out.total += shared.sums[warp];
  }
  __syncthreads();
  return out;
}

}  // namespace adder::cuda::sampling
