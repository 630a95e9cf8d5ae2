#pragma once

// Launching a kernel: grid, shared memory beyond the default limit, and what went wrong.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "adder/cuda_stream.h"
#include "core/ceil_div.h"
#include "cuda/check.h"

namespace adder::cuda {

/// Shared memory that a block gets without asking.
inline constexpr std::size_t kDefaultSharedBytes = 48 * 1024;

/// As many blocks as a grid may have in its first dimension, or an error.
inline unsigned checked_blocks(std::string_view doing, std::int64_t blocks) {
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  check(blocks <= kMostBlocks ? cudaSuccess : cudaErrorInvalidConfiguration, doing);
  return static_cast<unsigned>(blocks);
}

/// Puts `blocks` blocks of `threads` threads on the stream; none if there are no blocks. `doing`
/// completes "CUDA failed ...": "to launch rms_norm".
template <typename... Params, typename... Args>
void launch(std::string_view doing, void (*kernel)(Params...), std::int64_t blocks, int threads,
            std::size_t shared_bytes, Stream stream, const Args&... args) {
  if (blocks == 0) return;
  const unsigned grid = checked_blocks(doing, blocks);
  if (shared_bytes > kDefaultSharedBytes) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          doing);
  }
  kernel<<<grid, static_cast<unsigned>(threads), shared_bytes, stream>>>(args...);
  check_launch(doing);
}

}  // namespace adder::cuda
