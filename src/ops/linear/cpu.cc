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
      .panels = weight.panels(),
      .panel_begin = 0,
      .panel_end = weight.panels(),
      .bias = args.bias.defined() ? args.bias.as<float>() : nullptr,
      .y = args.y.as<float>(),
      .y_stride = args.y.stride(0),
      .out_features = weight.out_features(),
  };
  if (all.ntokens == 0 || all.panels == 0) return;
  const LinearKernels::Multiply multiply = kernel_for(weight.dtype(), args.round_inputs);

  if (all.ntokens <= kFewTokens) {
    const std::int64_t grain = panel_grain(all.ntokens, all.panel_elements);
    for_panels_of_few(pool, all.panel_end, grain, [&](std::int64_t begin, std::int64_t end) {
      LinearWork share = all;
      share.panel_begin = begin;
      share.panel_end = end;
      multiply(share);
    });
    return;
  }
  const std::int64_t inputs_at_once = std::min(all.in_features, kLinearInputBlock);
  const Cells cells(all.ntokens, all.in_features, inputs_at_once * 4, all.panels, pool.nthreads());
  pool.parallel_cells(cells.rows(), cells.columns(), [&](std::int64_t row, std::int64_t column) {
    LinearWork share = all;
    const std::int64_t token = cells.first_token(row);
    share.x += token * all.x_stride;
    share.y += token * all.y_stride;
    share.ntokens = cells.last_token(row) - token;
    share.panel_begin = cells.first_panel(column);
    share.panel_end = cells.last_panel(column);
    multiply(share);
  });
}

}  // namespace adder::cpu
