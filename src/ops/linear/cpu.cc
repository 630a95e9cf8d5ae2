#include <algorithm>

#include "core/check.h"
#include "ops/linear/kernels.h"
#include "ops/linear/linear.h"
#include "ops/linear/shares.h"

namespace adder::cpu {
namespace {

LinearKernels::Multiply kernel_for(DType weight, bool round_inputs) {
  const LinearKernels& kernels = linear_kernels();
  if (weight == DType::bf16) return round_inputs ? multiply_rounded() : kernels.multiply_bf16;
  return weight == DType::f16 ? kernels.multiply_f16 : kernels.multiply_f32;
}

}  // namespace

void linear(const LinearArgs& args, const PackedLinear& weight, ThreadPool& pool) {
  validate(args, weight.out_features(), weight.in_features());
  check_host("linear", "x", args.x);
  check(!args.accumulate,
        "linear: accumulate is set for tensors in host memory, expected it on a CUDA device only");
  const LinearWork all{
      .x = args.x.as<float>(),
      .x_stride = args.x.stride(0),
      .ntokens = args.x.dim(0),
      .in_features = weight.in_features(),
      .weights = weight.data(),
      .panel_elements = weight.panel_elements(),
      .panel_begin = 0,
      .panel_end = weight.panels(),
      .bias = args.bias.defined() ? args.bias.as<float>() : nullptr,
      .y = args.y.as<float>(),
      .y_stride = args.y.stride(0),
      .out_features = weight.out_features(),
  };
  if (all.ntokens == 0) return;
  const LinearKernels::Multiply multiply = kernel_for(weight.dtype(), args.round_inputs);

  // Threads share out panels, so that each reads its own part of the weight alone. A narrow layer
  // over many tokens shares out tokens instead: the weight is small, and panels would not go round.
  constexpr std::int64_t kTokenGrain = 32;
  if (all.panel_end < 3 * pool.nthreads() && all.ntokens >= kTokenGrain * pool.nthreads()) {
    pool.parallel_for(all.ntokens, kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
      LinearWork share = all;
      share.x += begin * all.x_stride;
      share.y += begin * all.y_stride;
      share.ntokens = end - begin;
      multiply(share);
    });
    return;
  }
  const std::int64_t grain = panel_grain(all.ntokens, all.panel_elements);
  pool.parallel_for(all.panel_end, grain, [&](std::int64_t begin, std::int64_t end) {
    LinearWork share = all;
    share.panel_begin = begin;
    share.panel_end = end;
    multiply(share);
  });
}

}  // namespace adder::cpu
