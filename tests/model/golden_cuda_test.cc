#include "cuda/device.h"
#include "tests/model/golden.h"

namespace adder {

std::string golden_device() { return "cuda"; }

std::string why_no_golden_device() {
  return cuda::device_count() > 0 ? "" : "no CUDA device: " + cuda::why_no_device();
}

}  // namespace adder
