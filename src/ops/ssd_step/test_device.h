#pragma once

// Problems for ssd_step in the memory of a CUDA device.

#include <vector>

#include "ops/ssd_step/test_case.h"
#include "tests/support/device.h"

namespace adder::test {

/// A case on the device: inputs in order of their elements, outputs between canaries.
class StepOnDevice {
 public:
  explicit StepOnDevice(const StepCase& c, std::int64_t misalignment = 0)
      : args(c.args),
        case_(c),
        y_(c.shape.dtype, c.x.view.numel(), misalignment),
        state_(c.shape.state_dtype, static_cast<std::int64_t>(c.state.size()), misalignment) {
    const StepShape& s = c.shape;
    for (ConstTensorView* view :
         {&args.x, &args.dt, &args.A, &args.B, &args.C, &args.D, &args.z, &args.dt_bias}) {
      if (!view->defined()) continue;
      const Tensor floats = convert(*view, DType::f32);
      inputs_.emplace_back(view->dtype, floats.span<float>(), misalignment);
      const ConstTensorView host = *view;
      *view = inputs_.back().view({host.numel()});
      view->rank = host.rank;
      view->shape = host.shape;
      view->strides = ConstTensorView(nullptr, host.dtype, host.dims()).strides;
    }
    args.y = y_.view({s.batch, s.nheads, s.headdim});
    args.state = state_.view({s.batch, s.nheads, s.headdim, s.dstate});
    reset();
  }

  void reset() {
    y_.poison();
    state_.fill(case_.state);
  }
  StepOutput result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    EXPECT_TRUE(state_.intact(stream));
    return {y_.values(stream), state_.values(stream)};
  }

  SsdStepArgs args;

 private:
  const StepCase& case_;
  std::vector<DeviceBuffer> inputs_;
  DeviceBuffer y_, state_;
};

}  // namespace adder::test
