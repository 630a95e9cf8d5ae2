#include "ops/linear/linear.h"

#include "core/check.h"

namespace adder {

void validate(const LinearArgs& args, std::int64_t out_features, std::int64_t in_features) {
  constexpr auto kOp = "linear";
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, in_features}, where);
  check_float(kOp, "x", args.x);
  check_rows(kOp, "x", args.x);
  const std::int64_t ntokens = args.x.dim(0);
  check_shape(kOp, "y", args.y, {ntokens, out_features}, where);
  check_dtype(kOp, "y", args.y, {DType::f32, args.x.dtype});
  check(!args.accumulate || args.y.dtype == DType::f32,
        "linear: y has dtype {} and accumulate is set, expected f32", name_of(args.y.dtype));
  check_rows(kOp, "y", args.y);
  const std::int64_t stride = args.y.stride(0);
  check(
      ntokens <= 1 || stride >= out_features || stride <= -out_features,
      "linear: y has row stride {}, expected at least out_features {} so that rows do not overlap",
      stride, out_features);
  check(args.y.data != args.x.data || args.x.numel() == 0 || args.y.numel() == 0,
        "linear: y is x, expected another tensor");
  if (args.bias.defined()) {
    check_shape(kOp, "bias", args.bias, {out_features}, where);
    check_dtype(kOp, "bias", args.bias, {DType::f32});
    check_contiguous(kOp, "bias", args.bias);
  }
}

}  // namespace adder
