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
          .scales = cutter.take<float>(ntokens * blocks),
          .starts = cutter.take<std::int32_t>(ntokens * blocks)};
}

QuantizedInput from_token(QuantizedInput x, std::int64_t token, std::int64_t blocks) {
  return {.values = x.values + token * blocks * kQuantBlock,
          .scales = x.scales + token * blocks,
          .starts = x.starts + token * blocks};
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
  if (ntokens == 0) return;
  const bool is_int4 = weight.format() == WeightFormat::int4;
  const std::int64_t blocks = weight.blocks();
  const QuantizedLinearKernels& kernels = quantized_linear_kernels();
  WorkspaceCutter cutter(workspace);

  const QuantizeWork inputs{.x = args.x.as<float>(),
                            .x_stride = args.x.stride(0),
                            .ntokens = ntokens,
                            .in_features = weight.columns(),
                            .blocks = blocks,
                            .zero = is_int4 ? QuantizedPanel::kInt4Zero : QuantizedPanel::kInt8Zero,
                            .to = cut(cutter, ntokens, blocks)};
  // Fewer tokens than this are quantized faster than another thread is woken.
  constexpr std::int64_t kTokenGrain = 16;
  pool.parallel_for(ntokens, kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
    QuantizeWork share = inputs;
    share.x += begin * share.x_stride;
    share.ntokens = end - begin;
    share.to = from_token(share.to, begin, blocks);
    kernels.quantize(share);
  });

  const QuantizedLinearWork all{
      .x = inputs.to,
      .ntokens = ntokens,
      .blocks = blocks,
      .weights = reinterpret_cast<const std::uint8_t*>(weight.data()),
      .panel_bytes = weight.panel_bytes(),
      .panel_begin = 0,
      .panel_end = weight.panels(),
      .bias = args.bias.defined() ? args.bias.as<float>() : nullptr,
      .y = args.y.as<float>(),
      .y_stride = args.y.stride(0),
      .out_features = weight.rows(),
  };
  auto multiply = is_int4 ? kernels.multiply_int4 : kernels.multiply_int8;
  const QuantizedMatrixKernels* matrix = quantized_matrix_kernels();
  if (matrix != nullptr && ntokens > matrix->few_tokens) {
    multiply = is_int4 ? matrix->multiply_int4 : matrix->multiply_int8;
  }
  // As for a weight in floating point: threads share out panels, or tokens where panels are few.
  if (all.panel_end < 3 * pool.nthreads() && ntokens >= 2 * kTokenGrain * pool.nthreads()) {
    pool.parallel_for(ntokens, 2 * kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
      QuantizedLinearWork share = all;
      share.x = from_token(share.x, begin, blocks);
      share.y += begin * share.y_stride;
      share.ntokens = end - begin;
      multiply(share);
    });
    return;
  }
  const std::int64_t grain = panel_grain(ntokens, blocks * kQuantBlock * kQuantPanelRows);
  pool.parallel_for(all.panel_end, grain, [&](std::int64_t begin, std::int64_t end) {
    QuantizedLinearWork share = all;
    share.panel_begin = begin;
    share.panel_end = end;
    multiply(share);
  });
}

}  // namespace adder::cpu
