#pragma once

// What the threads and blocks of a program's kernel share, and how they wait for one another.

#include "cuda/hopper.cuh"
#include "ops/step_program/cuda_kernel.h"

namespace adder::cuda::program {

inline constexpr int kThreads = kWarps * kWarpSize;  // that multiply
inline constexpr int kSideThreads = kSideWarps * kWarpSize;
/// Warps are in this order: those that multiply, the one that copies, those beside.
inline constexpr int kFirstSideWarp = kWarps + 1;
/// Of a kernel for programs with links, and so mixers, or for others. Those are worse off with the
/// code of the former among theirs.
template <bool kLinked>
inline constexpr int kBlockThreads = (kFirstSideWarp + (kLinked ? kSideWarps : 0)) * kWarpSize;

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }

/// Barriers of a block's threads: of those that multiply, of those beside, of both.
enum : int { kMain = 1, kSide, kSharedRows, kChannelRows, kMixerEnd };

/// Waits for all threads that multiply.
__device__ __forceinline__ void sync_threads() { sync_threads_of(kMain, kThreads); }
__device__ __forceinline__ void sync_side() { sync_threads_of(kSide, kSideThreads); }

/// What one side has done, the other waits for.
__device__ __forceinline__ void arrive_for_others(int barrier) {
  arrive_threads_of(barrier, kThreads + kSideThreads);
}
__device__ __forceinline__ void wait_for_others(int barrier) {
  sync_threads_of(barrier, kThreads + kSideThreads);
}

template <typename X>
__device__ __forceinline__ bool is_projection(const Instruction<X>& instruction) {
  return instruction.kind == Kind::linear || instruction.kind == Kind::mixer;
}

/// Instructions in shared memory, brought by some threads, of which this is number `me`: the next
/// is under way while one is carried out.
template <typename X, int kCount>
class Fetcher {
  static constexpr int kVectors = static_cast<int>(sizeof(Instruction<X>) / sizeof(uint4));
  static constexpr int kEach = (kVectors + kCount - 1) / kCount;
  static_assert(sizeof(Instruction<X>) % sizeof(uint4) == 0);

 public:
  struct Memory {
    uint4 vectors[2][kVectors];
  };

  /// The first is there once these threads have met.
  __device__ Fetcher(const Params<X>& p, Memory& memory, int me) : p_(p), memory_(memory), me_(me) {
    ask(0);
    put(0);
    ask(1);
  }

  __device__ const Instruction<X>& get(int i) const {
    return *reinterpret_cast<const Instruction<X>*>(memory_.vectors[i % 2]);
  }
  /// By all, before they meet between instructions i and i + 1.
  __device__ void advance(int i) {
    put(i + 1);
    ask(i + 2);
  }

 private:
  __device__ void ask(int i) {
    if (i >= p_.count) return;
    const auto* from = reinterpret_cast<const uint4*>(p_.instructions + i);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (me_ + k * kCount < kVectors) next_[k] = from[me_ + k * kCount];
    }
  }
  __device__ void put(int i) {
    if (i >= p_.count) return;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (me_ + k * kCount < kVectors) memory_.vectors[i % 2][me_ + k * kCount] = next_[k];
    }
  }

  const Params<X>& p_;
  Memory& memory_;
  int me_;
  uint4 next_[kEach];
};

/// The points between instructions: what any block wrote before one may be read after it. For the
/// threads that multiply.
class Grid {
 public:
  __device__ explicit Grid(unsigned long long* arrivals) : arrivals_(arrivals) {
    // Kernels before this one left a multiple of the number of blocks. Blocks that are already at
    // the first point are fewer than all, since this one is not.
    unsigned long long now = 0;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrivals) : "memory");
    target_ = now / gridDim.x * gridDim.x;
  }

  /// How many there were before this one, with so many meetings each. Before the first meeting.
  __device__ std::uint32_t launches(int meetings) const {
    return static_cast<std::uint32_t>(target_ / (gridDim.x * static_cast<unsigned>(meetings)));
  }

  /// The end of an instruction: says that this block is there.
  __device__ void leave() {
    sync_threads();
    target_ += gridDim.x;
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrivals_) : "memory");
    }
  }

  /// The beginning of the next: waits until all blocks have said so.
  __device__ void enter() const {
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
