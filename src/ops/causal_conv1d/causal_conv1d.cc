#include "ops/causal_conv1d/causal_conv1d.h"

#include "core/check.h"

namespace adder {

void validate(const CausalConv1dArgs& args) {
  constexpr auto kOp = "causal_conv1d";
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny}, where);
  check_float(kOp, "x", args.x);
  check_rows(kOp, "x", args.x);
  const std::int64_t ntokens = args.x.dim(0);
  const std::int64_t channels = args.x.dim(1);
  check_shape(kOp, "weight", args.weight, {channels, kAny}, where);
  check_dtype(kOp, "weight", args.weight, {DType::f32});
  const std::int64_t width = args.weight.dim(1);
  check(width >= kMinConvWidth && width <= kMaxConvWidth,
        "causal_conv1d: weight has width {}, expected {} to {}", width, kMinConvWidth,
        kMaxConvWidth);
  if (args.bias.defined()) {
    check_shape(kOp, "bias", args.bias, {channels}, where);
    check_dtype(kOp, "bias", args.bias, {DType::f32});
    check_contiguous(kOp, "bias", args.bias);
  }
  check_shape(kOp, "y", args.y, {ntokens, channels}, where);
  check_dtype(kOp, "y", args.y, {args.x.dtype});
  check_rows(kOp, "y", args.y);
  check(args.y.data != args.x.data || args.x.numel() == 0,
        "causal_conv1d: y is x, expected another tensor");
  if (args.cu_seqlens.defined()) check_cu_seqlens(kOp, args.cu_seqlens, ntokens, where);
  if (args.conv_state.defined()) {
    const std::int64_t nsequences = args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : 1;
    check_shape(kOp, "conv_state", args.conv_state, {nsequences, width - 1, channels}, where);
    check_dtype(kOp, "conv_state", args.conv_state, {DType::f32});
    check_rows(kOp, "conv_state", args.conv_state);
  }
  if (args.seq_idx.defined()) {
    check_shape(kOp, "seq_idx", args.seq_idx, {ntokens}, where);
    check_dtype(kOp, "seq_idx", args.seq_idx, {DType::i32});
    check_contiguous(kOp, "seq_idx", args.seq_idx);
  }
}

}  // namespace adder
