#include "core/check.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/gated_rms_norm/kernels.h"

namespace adder::cpu {

void gated_rms_norm(const GatedRmsNormArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("gated_rms_norm", "y", args.y);
  const std::int64_t ntokens = args.y.dim(0);
  const std::int64_t ngroups = args.ngroups;
  const std::int64_t size = args.y.dim(1) / ngroups;
  const GatedRmsNormKernels& kernels = gated_rms_norm_kernels();
  // Token and group are numbered as one, so that the groups of a single token are shared out too.
  // A range of fewer than 4K elements costs less than waking a thread for it.
  const std::int64_t grain = 1 + 4096 / (size + 1);
  pool.parallel_pieces(ntokens * ngroups, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t t = unit / ngroups;
      const std::int64_t first = unit % ngroups * size;
      const auto at = [&](const auto& view) {
        return view.template as<float>() + t * view.stride(0) + first;
      };
      const float* z = args.z.defined() ? at(args.z) : nullptr;
      const float* weight = args.weight.defined() ? args.weight.as<float>() + first : nullptr;
      if (!args.norm) {
        kernels.gate(at(args.y), z, at(args.out), size);
      } else {
        const auto kernel = args.norm_before_gate ? kernels.norm_then_gate : kernels.gate_then_norm;
        kernel(at(args.y), z, weight, args.epsilon, at(args.out), size);
      }
    }
  });
}

}  // namespace adder::cpu
