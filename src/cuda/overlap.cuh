#pragma once

// Kernels that begin while the one before them on the stream still runs (programmatic dependent
// launch, compute capability 9.0; on earlier ones kernels follow each other as usual).

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "adder/cuda_stream.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/launch.cuh"

namespace adder::cuda {

/// Waits for the kernels before this one on the stream, and makes what they wrote visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel, if it was launched to overlap, begin as soon as all blocks have said so
/// and there is room for it.
__device__ __forceinline__ void let_next_kernel_begin() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Asks for the line of an address, as far as the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Puts a kernel on the stream; with `overlap` it begins as the one before it lets it. Dynamic
/// shared memory beyond the default has been allowed.
template <typename... Params, typename... Args>
void launch_overlapping(std::string_view doing, void (*kernel)(Params...), dim3 grid, int threads,
                        std::size_t shared_bytes, bool overlap, Stream stream,
                        const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args...), doing);
}

/// The first thing that a kernel does which is short and has nothing to do before the one before it
/// has ended: the next one may then begin beside it, and wait likewise.
__device__ __forceinline__ void begin_after_previous_kernel() {
  let_next_kernel_begin();
  wait_for_previous_kernel();
}

/// Puts a kernel that begins so on the stream; none if there are no blocks.
template <typename... Params, typename... Args>
void launch_after_previous(std::string_view doing, void (*kernel)(Params...), std::int64_t blocks,
                           int threads, Stream stream, const Args&... args) {
  if (blocks == 0) return;
  const bool overlap = properties(current_device()).compute_capability >= 90;
  launch_overlapping(doing, kernel, dim3(checked_blocks(doing, blocks)), threads, 0, overlap,
                     stream, args...);
}

}  // namespace adder::cuda
