#pragma once

// Float32 functions on the special-function unit, and sums over threads.

namespace adder::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarpSize = 32;
inline constexpr float kLog2E = 1.4426950408889634F;

/// 2^v with a relative error of at most 2^-22; results below 2^-126 are zero.
__device__ __forceinline__ float exp2_approx(float v) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

/// log2(v) to 2^-22, absolutely between 1/2 and 2 and relatively elsewhere; of zero, minus
/// infinity.
__device__ __forceinline__ float log2_approx(float v) {
  float out;
  asm("lg2.approx.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

/// 1 / v to the last bit but one; results below 2^-126 are zero.
__device__ __forceinline__ float reciprocal_approx(float v) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

/// v / (1 + e^-v) for results of type T, no NaN for any finite v. For 16-bit types two special
/// functions and no branch; for float the accurate exponential and a true division, since there the
/// rounding of v log2(e) and of the reciprocal would show.
template <typename T>
__device__ __forceinline__ float silu(float v) {
  if constexpr (sizeof(T) < sizeof(float)) {
    return v * reciprocal_approx(1.0F + exp2_approx(v * -kLog2E));
  } else {
    return v / (1.0F + expf(-v));
  }
}

/// The sum over the warp, the same in all lanes, in a fixed order.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    v += __shfl_xor_sync(kFullWarp, v, distance);
  }
  return v;
}

/// The sum over a thread block of whole warps, the same in all threads, in a fixed order. Used once
/// in a kernel: `shared` has one float per warp.
__device__ __forceinline__ float block_sum(float v, float* shared) {
  const int nwarps = static_cast<int>(blockDim.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  v = warp_sum(v);
  if (lane == 0) shared[threadIdx.x / kWarpSize] = v;
  __syncthreads();
  return warp_sum(lane < nwarps ? shared[lane] : 0.0F);
}

}  // namespace adder::cuda
