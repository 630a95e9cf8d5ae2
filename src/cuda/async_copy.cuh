#pragma once

// Copies from global to shared memory that run beside the thread that asks for them (sm_80 on).

#include <cstdint>

namespace adder::cuda {

/// The address of shared memory as instructions take it.
__device__ __forceinline__ std::uint32_t to_shared(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// 16 bytes at a multiple of 16, of which the first `bytes` are read and the rest is zero.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared(to)), "l"(from),
               "r"(bytes)
               : "memory");
}

/// 4 bytes at a multiple of 4; zero if `bytes` is 0.
__device__ __forceinline__ void copy_async_4(void* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to_shared(to)), "l"(from),
               "r"(bytes)
               : "memory");
}

/// Until all copies that this thread asked for are there. Other threads see them after a barrier.
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace adder::cuda
