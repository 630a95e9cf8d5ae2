#pragma once

// Status codes of the CUDA runtime and driver, turned into adder::Error. For files that include
// CUDA headers anyway: src/cuda/*.cc and *.cu.

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

namespace adder::cuda {

/// Throws adder::Error that says what was being done, the status's name and text, and the place in
/// the source. The sticky error of a failed kernel is cleared where the runtime allows it.
[[noreturn]] void fail_status(cudaError_t status, std::string_view doing,
                              const std::source_location& where);

/// `doing` completes "CUDA failed ...": "to copy 12 bytes to the device".
inline void check(cudaError_t status, std::string_view doing,
                  const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess) [[unlikely]] {
    fail_status(status, doing, where);
  }
}

/// After a launch: reports what the launch itself found wrong. Errors inside the kernel appear at
/// the next call that waits.
inline void check_launch(std::string_view kernel,
                         const std::source_location& where = std::source_location::current()) {
  check(cudaGetLastError(), kernel, where);
}

}  // namespace adder::cuda
