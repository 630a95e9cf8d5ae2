#include "cuda/device.h"
#include "cuda/dispatch.h"
#include "cuda/layout.h"
#include "ops/ssd_step/cuda_kernel.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder::cuda {
namespace {

template <typename Void>
StepTensor<Void> step_tensor(const BasicTensorView<Void>& view) {
  if (!view.defined()) return {};
  return {view.data, view.stride(0), view.stride(1)};
}

StepParams make_params(const SsdStepArgs& args) {
  StepParams p{};
  p.x = step_tensor(args.x);
  p.B = step_tensor(args.B);
  p.C = step_tensor(args.C);
  p.z = step_tensor(args.z);
  p.dt = step_tensor(args.dt);
  p.y = step_tensor(args.y);
  p.dt_is_float = args.dt.dtype == DType::f32;
  p.A = args.A.as<float>();
  if (args.dt_bias.defined()) p.dt_bias = args.dt_bias.as<float>();
  p.dt_options = {args.dt_softplus, args.dt_min, args.dt_max};
  if (args.D.defined()) p.D = args.D.as<float>();
  p.D_has_headdim = args.D.rank == 2;
  p.state = args.state.data;
  p.state_sequence = args.state.stride(0);
  p.state_head = args.state.stride(1);
  p.state_p = args.state.stride(2);
  p.batch = args.x.dim(0);
  p.nheads = args.x.dim(1);
  p.heads_per_group = args.x.dim(1) / args.B.dim(1);
  p.headdim = args.x.dim(2);
  p.dstate = args.B.dim(2);
  return p;
}

}  // namespace

void ssd_step(const SsdStepArgs& args, Stream stream) {
  validate(args);
  check_current("ssd_step", "x", args.x);
  constexpr std::int64_t kVector = 4;
  const bool vectors = args.B.dim(2) % kVector == 0 && rows_aligned(args.state) &&
                       rows_aligned(args.B) && rows_aligned(args.C);
  visit_float(args.x.dtype, [&]<typename T>(TypeTag<T>) {
    visit_state(args.state.dtype, [&]<typename State>(TypeTag<State>) {
      launch_step<T, State>(make_params(args), vectors, stream);
    });
  });
}

}  // namespace adder::cuda
