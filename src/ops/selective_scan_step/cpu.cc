#include <algorithm>

#include "core/check.h"
#include "ops/selective_scan_step/kernels.h"
#include "ops/selective_scan_step/selective_scan_step.h"

namespace adder::cpu {

void selective_scan_step(const SelectiveScanStepArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("selective_scan_step", "x", args.x);
  const SelectiveScanStepKernels& kernels = selective_scan_step_kernels();
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t ngroups = args.B.dim(1);
  const std::int64_t dstate = args.A.dim(1);
  const std::int64_t group_size = args.x.dim(1) / ngroups;
  const std::int64_t blocks = (group_size + kStepChannels - 1) / kStepChannels;  // of one group

  const auto run_block = [&](std::int64_t b, std::int64_t group, std::int64_t offset) {
    const std::int64_t channel = group * group_size + offset;
    const auto row = [&](const auto& view) {
      return view.defined() ? view.template as<float>() + b * view.stride(0) + channel : nullptr;
    };
    const auto per_channel = [&](const ConstTensorView& view) {
      return view.defined() ? view.as<float>() + channel : nullptr;
    };
    kernels.step(
        {.nchannels = static_cast<int>(std::min<std::int64_t>(kStepChannels, group_size - offset)),
         .dstate = dstate,
         .x = row(args.x),
         .dt = row(args.dt),
         .z = row(args.z),
         .D = per_channel(args.D),
         .dt_bias = per_channel(args.dt_bias),
         .A = args.A.as<float>() + channel * args.A.stride(0),
         .A_stride = args.A.stride(0),
         .B = args.B.as<float>() + b * args.B.stride(0) + group * args.B.stride(1),
         .C = args.C.as<float>() + b * args.C.stride(0) + group * args.C.stride(1),
         .state =
             args.state.as<float>() + b * args.state.stride(0) + channel * args.state.stride(1),
         .state_stride = args.state.stride(1),
         .y = row(args.y),
         .dt_softplus = args.dt_softplus});
  };
  // A range of fewer than 8K states costs less than waking a thread for it.
  const std::int64_t grain = 1 + 8192 / (kStepChannels * (dstate + 1));
  pool.parallel_for(batch * ngroups * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      run_block(unit / (ngroups * blocks), unit / blocks % ngroups, unit % blocks * kStepChannels);
    }
  });
}

}  // namespace adder::cpu
