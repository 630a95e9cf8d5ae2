#pragma once

// Kernels that work on rows of adjacent elements, each row by itself, and sum over a row: a row
// belongs to one warp, or to a whole thread block if it is too long for that.

#include <cstdint>

#include "cuda/math.cuh"
#include "cuda/vector.cuh"

namespace adder::cuda {

/// How rows are spread over threads. A thread has the vectors index, index + threads, ... of a row.
struct RowPlan {
  int warps_per_row;
  int rows_per_block;  ///< 1 unless a warp has a row
  int vectors;         ///< of a row that a thread has at most, or 0: any number, in a loop

  int threads_per_block() const { return kWarpSize * warps_per_row * rows_per_block; }
  std::int64_t blocks(std::int64_t nrows) const {
    return (nrows + rows_per_block - 1) / rows_per_block;
  }
};

/// Threads of a block in kernels that follow a RowPlan.
inline constexpr int kMaxRowThreads = 512;

/// For rows of `n` vectors (or elements) that a thread may hold at most 4 of in registers.
inline RowPlan plan_rows(std::int64_t n) {
  constexpr int kRowsPerBlock = 4;
  for (int vectors : {1, 2, 4}) {
    if (n <= vectors * kWarpSize) return {1, kRowsPerBlock, vectors};
  }
  const auto warps = [&](int vectors) {
    return static_cast<int>((n + vectors * kWarpSize - 1) / (vectors * kWarpSize));
  };
  if (n > 4 * kMaxRowThreads) return {kMaxRowThreads / kWarpSize, 1, 0};
  // The more loads a thread has in flight, the better, unless more threads would then be idle.
  const bool fits = warps(2) * kWarpSize <= kMaxRowThreads;
  if (fits && 2 * warps(2) < 4 * warps(4)) return {warps(2), 1, 2};
  return {warps(4), 1, 4};
}

/// A plan for rows that cannot be held in registers.
inline RowPlan plan_rows_in_a_loop(std::int64_t n) {
  constexpr int kRowsPerBlock = 4;
  constexpr int kWarps = 8;
  if (n <= kWarps * kWarpSize) return {1, kRowsPerBlock, 0};
  return {kWarps, 1, 0};
}

/// This thread's place in a row.
struct RowThread {
  std::int64_t row;
  int index;
  int threads;

  __device__ explicit RowThread(int warps_per_row) {
    if (warps_per_row == 1) {
      const int warps_per_block = static_cast<int>(blockDim.x) / kWarpSize;
      row = std::int64_t{blockIdx.x} * warps_per_block + threadIdx.x / kWarpSize;
      index = static_cast<int>(threadIdx.x) % kWarpSize;
      threads = kWarpSize;
    } else {
      row = blockIdx.x;
      index = static_cast<int>(threadIdx.x);
      threads = static_cast<int>(blockDim.x);
    }
  }

  /// The sum over all threads of the row, the same in each, in a fixed order. Once in a kernel.
  __device__ float sum(float v) const {
    if (threads == kWarpSize) return warp_sum(v);
    __shared__ float shared[kMaxRowThreads / kWarpSize];
    return block_sum(v, shared);
  }
};

template <int V>
__device__ __forceinline__ float add_squares(float sum, const float (&values)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) sum = fmaf(values[i], values[i], sum);
  return sum;
}

/// values = values * scale * weight, the weight being absent if it is null.
template <int V>
__device__ __forceinline__ void apply_scale(float (&values)[V], float scale, const float* weight) {
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] *= scale;
  if (weight == nullptr) return;
  float weights[V];
  load_floats(weight, true, weights);
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] *= weights[i];
}

/// 1 / rms of n values whose squares add up to `sum`.
__device__ __forceinline__ float inverse_rms(float sum, std::int64_t n, float epsilon) {
  return 1.0F / sqrtf(sum / static_cast<float>(n) + epsilon);
}

}  // namespace adder::cuda
