#pragma once

// What a CUDA device can do at most, measured: the bounds that benchmarks on it are held against.

#include <cstdint>
#include <string>

namespace adder::bench {

struct DevicePeaks {
  std::string name;  ///< "NVIDIA H200"
  int index = 0;
  int compute_capability = 0;  ///< 90 for 9.0
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int driver_version = 0;  ///< CUDA version that the driver is for: 13000 for 13.0
  int runtime_version = 0;
  /// Bytes read plus bytes written per second, device memory to device memory.
  double copy_bytes = 0;
  /// Dense bf16 products with float32 sums, multiply and add counted apart, on random numbers in
  /// registers and shared memory.
  double matrix_flops = 0;
  /// Which instruction that was: "wgmma" on devices of compute capability 9.0, else "mma".
  std::string matrix_instruction;
};

/// Memory of the current device that is taken, by this process or others.
std::int64_t device_bytes_in_use();

/// Of the current device. Takes about `seconds` for each figure; each is the fastest tenth of
/// repeated measurements. Throws if the matrix kernel's products are wrong.
DevicePeaks measure_device(double seconds = 0.25);

}  // namespace adder::bench
