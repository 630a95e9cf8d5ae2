#include "core/check.h"
#include "ops/rms_norm/kernels.h"
#include "ops/rms_norm/rms_norm.h"

namespace adder::cpu {

void rms_norm(const RmsNormArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("rms_norm", "residual", args.residual);
  const std::int64_t ntokens = args.residual.dim(0);
  const std::int64_t d_model = args.residual.dim(1);
  const RmsNormKernels& kernels = rms_norm_kernels();
  const auto row_of = [](const auto& view, std::int64_t t) {
    return view.defined() ? view.template as<float>() + t * view.stride(0) : nullptr;
  };
  // A range of fewer than 8K elements costs less than waking a thread for it.
  const std::int64_t grain = 1 + 8192 / (d_model + 1);
  pool.parallel_pieces(ntokens, grain, [&](std::int64_t begin, std::int64_t end) {
    const float* weight = args.weight.defined() ? args.weight.as<float>() : nullptr;
    for (std::int64_t t = begin; t < end; ++t) {
      kernels.row(row_of(args.residual, t), row_of(args.x, t), weight, args.epsilon,
                  row_of(args.y, t), d_model);
    }
  });
}

}  // namespace adder::cpu
