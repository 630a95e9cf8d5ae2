#pragma once

#include <string>

namespace adder::cuda {

/// A kind of CUDA device, as far as the best way to run a kernel depends on it.
struct DeviceModel {
  std::string name;            ///< "NVIDIA H200"
  int compute_capability = 0;  ///< 90 for 9.0
  int multiprocessors = 0;     ///< of a divided device, those of the part

  friend bool operator==(const DeviceModel&, const DeviceModel&) = default;
};

}  // namespace adder::cuda
