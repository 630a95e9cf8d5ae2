#include "ops/gated_rms_norm/gated_rms_norm.h"

#include "core/check.h"

namespace adder {

void validate(const GatedRmsNormArgs& args) {
  constexpr auto kOp = "gated_rms_norm";
  const Device where = args.y.device;
  check_shape(kOp, "y", args.y, {kAny, kAny}, where);
  check_float(kOp, "y", args.y);
  check_rows(kOp, "y", args.y);
  const std::int64_t ntokens = args.y.dim(0);
  const std::int64_t d_inner = args.y.dim(1);
  if (args.z.defined()) {
    check_shape(kOp, "z", args.z, {ntokens, d_inner}, where);
    check_dtype(kOp, "z", args.z, {args.y.dtype});
    check_rows(kOp, "z", args.z);
  }
  check(args.norm || args.z.defined(),
        "gated_rms_norm: z is missing and norm is false, expected a gate or a norm");
  if (args.weight.defined()) {
    check(args.norm, "gated_rms_norm: weight is given and norm is false, expected no weight");
    check_shape(kOp, "weight", args.weight, {d_inner}, where);
    check_dtype(kOp, "weight", args.weight, {DType::f32});
    check_contiguous(kOp, "weight", args.weight);
  }
  check_shape(kOp, "out", args.out, {ntokens, d_inner}, where);
  check_dtype(kOp, "out", args.out, {args.y.dtype});
  check_rows(kOp, "out", args.out);
  check(args.ngroups >= 1 && d_inner % args.ngroups == 0,
        "gated_rms_norm: ngroups is {}, expected a divisor of d_inner, {}", args.ngroups, d_inner);
  check(args.epsilon >= 0, "gated_rms_norm: epsilon is {}, expected a number that is not negative",
        args.epsilon);
}

}  // namespace adder
