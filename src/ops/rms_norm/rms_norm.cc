#include "ops/rms_norm/rms_norm.h"

#include "core/check.h"

namespace adder {

void validate(const RmsNormArgs& args) {
  constexpr auto kOp = "rms_norm";
  const Device where = args.residual.device;
  check_shape(kOp, "residual", args.residual, {kAny, kAny}, where);
  check_float(kOp, "residual", args.residual);
  check_rows(kOp, "residual", args.residual);
  const std::int64_t ntokens = args.residual.dim(0);
  const std::int64_t d_model = args.residual.dim(1);
  check_shape(kOp, "y", args.y, {ntokens, d_model}, where);
  check_float(kOp, "y", args.y);
  check_rows(kOp, "y", args.y);
  if (args.residual.dtype != DType::f32) check_dtype(kOp, "y", args.y, {args.residual.dtype});
  if (args.x.defined()) {
    check_dtype(kOp, "residual", args.residual, {DType::f32});
    check_shape(kOp, "x", args.x, {ntokens, d_model}, where);
    check_dtype(kOp, "x", args.x, {args.y.dtype});
    check_rows(kOp, "x", args.x);
    check(args.y.data != args.residual.data || ntokens == 0,
          "rms_norm: y is residual, expected another tensor when x is given");
  } else {
    check(args.y.data != args.residual.data || args.y.dtype == args.residual.dtype || ntokens == 0,
          "rms_norm: y is residual but of dtype {}, expected {}", name_of(args.y.dtype),
          name_of(args.residual.dtype));
  }
  if (args.weight.defined()) {
    check_shape(kOp, "weight", args.weight, {d_model}, where);
    check_dtype(kOp, "weight", args.weight, {DType::f32});
    check_contiguous(kOp, "weight", args.weight);
  }
  check(args.epsilon >= 0, "rms_norm: epsilon is {}, expected a number that is not negative",
        args.epsilon);
}

}  // namespace adder
