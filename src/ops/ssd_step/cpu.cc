#include "core/check.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/kernels.h"
#include "ops/ssd_step/kernels.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder::cpu {
namespace {

template <typename Void>
Void* at(const BasicTensorView<Void>& view, std::int64_t i, std::int64_t j) {
  using Byte = typename BasicTensorView<Void>::template Element<unsigned char>;
  if (!view.defined()) return nullptr;
  return static_cast<Byte*>(view.data) +
         (i * view.stride(0) + j * view.stride(1)) * static_cast<std::int64_t>(size_of(view.dtype));
}

void step(const SsdStepArgs& args, std::int64_t row, std::int64_t head) {
  const float raw = *static_cast<const float*>(at(args.dt, row, head));
  const float* bias = args.dt_bias.defined() ? args.dt_bias.as<float>() + head : nullptr;
  float dt = 0;
  chunk_cumsum_kernels().time_steps(&raw, bias, args.dt_softplus, args.dt_min, args.dt_max, &dt, 1);
  const std::int64_t group = head / (args.x.dim(1) / args.B.dim(1));
  ssd_step_kernels().head(
      {.headdim = args.x.dim(2),
       .dstate = args.B.dim(2),
       .dt = dt,
       .A = args.A.as<float>()[head],
       .D = args.D.defined() ? args.D.as<float>() + head * args.D.stride(0) : nullptr,
       .D_has_headdim = args.D.rank == 2,
       .x = at(args.x, row, head),
       .B = at(args.B, row, group),
       .C = at(args.C, row, group),
       .z = at(args.z, row, head),
       .y = at(args.y, row, head),
       .dtype = args.x.dtype,
       .state = static_cast<float*>(at(args.state, row, head)),
       .state_stride = args.state.stride(2)});
}

}  // namespace

void ssd_step(const SsdStepArgs& args, ThreadPool& pool) {
  check_host("ssd_step", "x", args.x);
  validate(args);
  check_decay("ssd_step", args.A);
  const std::int64_t nheads = args.x.dim(1);
  // Less than 64 KB of states takes less time than waking a thread.
  const std::int64_t grain = 1 + 16384 / (args.x.dim(2) * args.B.dim(2));
  pool.parallel_for(args.x.dim(0) * nheads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) step(args, i / nheads, i % nheads);
  });
}

}  // namespace adder::cpu
