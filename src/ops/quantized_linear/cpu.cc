#include <algorithm>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/quantized_panel.h"
#include "core/workspace.h"
#include "ops/linear/shares.h"
#include "ops/quantized_linear/kernels.h"
#include "ops/quantized_linear/quantized_linear.h"

namespace adder::cpu {
namespace {

QuantizedInput cut(WorkspaceCutter& cutter, std::int64_t ntokens, std::int64_t blocks) {
  return {.values = cutter.take<std::int8_t>(ntokens * blocks * kQuantBlock),
          .scales = cutter.take<float>(ntokens * quant_input_scales(blocks)),
          .starts = cutter.take<std::int32_t>(ntokens * blocks)};
}

}  // namespace

std::size_t quantized_linear_workspace_bytes(const LinearArgs& args,
                                             const QuantizedMatrix& weight) {
  validate(args, weight.rows(), weight.columns());
  WorkspaceCutter cutter;
  cut(cutter, args.x.dim(0), weight.blocks());
  return cutter.bytes();
}

void quantized_linear(const LinearArgs& args, const QuantizedMatrix& weight,
                      std::span<std::byte> workspace, ThreadPool& pool) {
  check_workspace("quantized_linear", workspace, quantized_linear_workspace_bytes(args, weight));
  check_host("quantized_linear", "x", args.x);
  check(!args.accumulate, "quantized_linear: accumulate is set, expected it on a CUDA device only");
  const std::int64_t ntokens = args.x.dim(0);
  if (ntokens == 0 || weight.panels() == 0) return;
  const bool is_int4 = weight.format() == WeightFormat::int4;
  const std::int64_t blocks = weight.blocks();
  const QuantizedLinearKernels& kernels = quantized_linear_kernels();
  const QuantizedMatrixKernels* matrix = quantized_matrix_kernels();
  if (matrix != nullptr && ntokens <= matrix->few_tokens) matrix = nullptr;
  WorkspaceCutter cutter(workspace);

  const QuantizeWork inputs{.x = args.x.as<float>(),
                            .x_stride = args.x.stride(0),
                            .ntokens = ntokens,
                            .in_features = weight.columns(),
                            .blocks = blocks,
                            .zero = is_int4 ? QuantizedPanel::kInt4Zero : QuantizedPanel::kInt8Zero,
                            .tokens_together = matrix != nullptr ? 1 : kernels.tokens_together,
                            .to = cut(cutter, ntokens, blocks)};
  // Fewer tokens than a step are quantized faster than another thread is woken.
  pool.parallel_for(ceil_div(ntokens, kQuantTokenStep), 1,
                    [&](std::int64_t begin, std::int64_t end) {
                      const std::int64_t token = begin * kQuantTokenStep;
                      QuantizeWork share = inputs;
                      share.x += token * share.x_stride;
                      share.ntokens = std::min(ntokens, end * kQuantTokenStep) - token;
                      share.to = input_from_token(share.to, token, blocks);
                      kernels.quantize(share);
                    });

  const QuantizedLinearWork all{
      .x = inputs.to,
      .ntokens = ntokens,
      .blocks = blocks,
      .weights = reinterpret_cast<const std::uint8_t*>(weight.data()),
      .panel_bytes = weight.panel_bytes(),
      .panels = weight.panels(),
      .panel_begin = 0,
      .panel_end = weight.panels(),
      .bias = args.bias.defined() ? args.bias.as<float>() : nullptr,
      .y = args.y.as<float>(),
      .y_stride = args.y.stride(0),
      .out_features = weight.rows(),
  };
  auto multiply = is_int4 ? kernels.multiply_int4 : kernels.multiply_int8;
  if (matrix != nullptr) multiply = is_int4 ? matrix->multiply_int4 : matrix->multiply_int8;
  // As for a weight in floating point.
  if (ntokens <= kFewTokens) {
    const std::int64_t grain = panel_grain(ntokens, blocks * kQuantBlock * kQuantPanelRows);
    for_panels_of_few(pool, all.panel_end, grain, [&](std::int64_t begin, std::int64_t end) {
      QuantizedLinearWork share = all;
      share.panel_begin = begin;
      share.panel_end = end;
      multiply(share);
    });
    return;
  }
  const std::int64_t in_features = blocks * kQuantBlock;
  const Cells cells(ntokens, in_features, in_features, all.panel_end, pool.nthreads());
  pool.parallel_cells(cells.rows(), cells.columns(), [&](std::int64_t row, std::int64_t column) {
    QuantizedLinearWork share = all;
    const std::int64_t token = cells.first_token(row);
    share.x = input_from_token(all.x, token, blocks);
    share.y += token * all.y_stride;
    share.ntokens = cells.last_token(row) - token;
    share.panel_begin = cells.first_panel(column);
    share.panel_end = cells.last_panel(column);
    multiply(share);
  });
}

}  // namespace adder::cpu
