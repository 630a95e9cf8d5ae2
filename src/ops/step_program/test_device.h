#pragma once

// Where programs of steps run.

#include <gtest/gtest.h>

#include "cuda/device.h"
#include "tests/support/device.h"

namespace adder::test {

inline int multiprocessors() { return cuda::properties(cuda::current_device()).multiprocessors; }

class OnHopper : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (cuda::properties(cuda::current_device()).compute_capability != 90) {
      GTEST_SKIP() << "programs are for devices of compute capability 9.0";
    }
  }
};

}  // namespace adder::test
