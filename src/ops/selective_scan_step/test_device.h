#pragma once

// Problems for selective_scan_step in the memory of a CUDA device.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ops/selective_scan/test_device.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/selective_scan_step/test_reference.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace adder::test::scan_step {

struct Output {
  std::vector<float> y, states;
};

// A scan of one token per batch row, of what inputs of `dtype` can hold.
inline ScanProblem random_step(ScanProblem p, DType dtype, bool options = true,
                               DType state_dtype = DType::f32) {
  p.seqlen = 1;
  p.fill(options);
  for (std::vector<float>* v : {&p.x, &p.dt, &p.B, &p.C, &p.z}) *v = rounded(*v, dtype);
  p.states = rounded(p.states, state_dtype);
  return p;
}

// A problem on the device, y and the state between canaries.
class DeviceStep {
 public:
  DeviceStep(const ScanProblem& p, DType dtype, std::int64_t misalignment = 0,
             std::int64_t A_misalignment = 0, DType state_dtype = DType::f32)
      : x_(dtype, p.x, misalignment),
        dt_(dtype, p.dt, misalignment),
        B_(dtype, p.B, misalignment),
        C_(dtype, p.C, misalignment),
        z_(dtype, p.z, misalignment),
        A_(DType::f32, p.A, A_misalignment),
        D_(DType::f32, p.D),
        dt_bias_(DType::f32, p.dt_bias),
        y_(dtype, static_cast<std::int64_t>(p.x.size()), misalignment),
        state_(state_dtype, p.states, misalignment),
        initial_(p.states) {
    args.x = x_.view({p.batch, p.d_inner});
    args.dt = dt_.view({p.batch, p.d_inner});
    args.A = A_.view({p.d_inner, p.dstate});
    args.B = B_.view({p.batch, p.ngroups, p.dstate});
    args.C = C_.view({p.batch, p.ngroups, p.dstate});
    if (!p.D.empty()) args.D = D_.view({p.d_inner});
    if (!p.z.empty()) args.z = z_.view({p.batch, p.d_inner});
    if (!p.dt_bias.empty()) args.dt_bias = dt_bias_.view({p.d_inner});
    args.state = state_.view({p.batch, p.d_inner, p.dstate});
    args.y = y_.view({p.batch, p.d_inner});
    args.dt_softplus = p.dt_softplus;
  }

  void reset() {
    y_.poison();
    state_.fill(initial_);
  }
  Output result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    EXPECT_TRUE(state_.intact(stream));
    return {y_.values(stream), state_.values(stream)};
  }

  SelectiveScanStepArgs args;

 private:
  DeviceBuffer x_, dt_, B_, C_, z_, A_, D_, dt_bias_, y_, state_;
  std::vector<float> initial_;
};

}  // namespace adder::test::scan_step
