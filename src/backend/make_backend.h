#pragma once

// From a device's name to the backend that runs there. Which kinds there are is decided by the
// files that a build compiles.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "backend/backend.h"

namespace adder {

struct BackendOptions {
  /// "cpu", "cuda" or "cuda:N".
  std::string device = "cpu";
  /// f32, bf16 or f16: of activations, where the backend offers a choice. The CPU's are f32, but
  /// bf16 allows rounding what is multiplied by matrices in bf16, in CPU tiers that multiply bf16
  /// numbers.
  DType activations = DType::f32;
  /// f32 or bf16: of the states of recurrences; the CPU's are f32.
  DType states = DType::f32;
  /// Threads of the CPU backend; 0 takes the cores that this process may run on.
  int nthreads = 0;
};

/// The N of "cuda:N", 0 of "cuda", nothing of other names.
std::optional<int> cuda_index(std::string_view device);

/// Throws adder::Error for a name that is none, for a device that is not there, that this build
/// cannot use, or that is too old, and for states that the device does not hold.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

/// Of one kind each: make_backend's parts.
std::unique_ptr<Backend> make_cuda_backend(int index, DType activations, DType states);

}  // namespace adder
