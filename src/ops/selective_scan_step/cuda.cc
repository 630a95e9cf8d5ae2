#include "cuda/device.h"
#include "cuda/dispatch.h"
#include "cuda/layout.h"
#include "ops/selective_scan_step/cuda_kernel.h"
#include "ops/selective_scan_step/selective_scan_step.h"

namespace adder::cuda {
namespace {

template <typename Void>
ScanStepTensor<Void> step_tensor(const BasicTensorView<Void>& view) {
  if (!view.defined()) return {};
  return {view.data, view.stride(0), view.rank == 3 ? view.stride(1) : 1};
}

ScanStepParams make_params(const SelectiveScanStepArgs& args) {
  ScanStepParams p{};
  p.x = step_tensor(args.x);
  p.dt = step_tensor(args.dt);
  p.z = step_tensor(args.z);
  p.B = step_tensor(args.B);
  p.C = step_tensor(args.C);
  p.y = step_tensor(args.y);
  p.A = args.A.as<float>();
  p.A_stride = args.A.stride(0);
  if (args.D.defined()) p.D = args.D.as<float>();
  if (args.dt_bias.defined()) p.dt_bias = args.dt_bias.as<float>();
  p.state = args.state.data;
  p.state_sequence = args.state.stride(0);
  p.state_channel = args.state.stride(1);
  p.batch = args.x.dim(0);
  p.d_inner = args.x.dim(1);
  p.group_size = args.x.dim(1) / args.B.dim(1);
  p.dstate = args.A.dim(1);
  p.dt_softplus = args.dt_softplus;
  p.group_vectors = rows_aligned(args.B) && rows_aligned(args.C);
  return p;
}

}  // namespace

void selective_scan_step(const SelectiveScanStepArgs& args, Stream stream) {
  validate(args);
  check_current("selective_scan_step", "x", args.x);
  constexpr std::int64_t kVector = 4;
  const bool vectors =
      args.A.dim(1) % kVector == 0 && rows_aligned(args.A) && rows_aligned(args.state);
  visit_float(args.x.dtype, [&]<typename T>(TypeTag<T>) {
    visit_state(args.state.dtype, [&]<typename State>(TypeTag<State>) {
      launch_scan_step<T, State>(make_params(args), vectors, stream);
    });
  });
}

}  // namespace adder::cuda
