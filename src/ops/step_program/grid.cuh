#pragma once

// What the threads and blocks of a program's kernel share, and how they wait for one another.

#include "cuda/hopper.cuh"
#include "ops/step_program/cuda_kernel.h"

namespace adder::cuda::program {

inline constexpr int kThreads = kWarps * kWarpSize;  // that compute

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }

/// Waits for all threads that compute.
__device__ __forceinline__ void sync_threads() { sync_threads_of(1, kThreads); }

/// The point between two instructions: what any block wrote before it may be read after it.
class Grid {
 public:
  __device__ explicit Grid(unsigned long long* arrivals) : arrivals_(arrivals) {
    // Kernels before this one left a multiple of the number of blocks. Blocks that are already at
    // the first point are fewer than all, since this one is not.
    unsigned long long now = 0;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrivals) : "memory");
    target_ = now / gridDim.x * gridDim.x;
  }

  /// Says that this block is there.
  __device__ void arrive() {
    sync_threads();
    target_ += gridDim.x;
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrivals_) : "memory");
    }
  }

  /// Waits until all blocks have said so.
  __device__ void wait() const {
    if (threadIdx.x == 0) {
      unsigned long long now = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrivals_) : "memory");
      } while (now < target_);
    }
    sync_threads();
  }

 private:
  unsigned long long* arrivals_;
  unsigned long long target_;
};

}  // namespace adder::cuda::program
