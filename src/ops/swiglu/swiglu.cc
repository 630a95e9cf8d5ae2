#include "ops/swiglu/swiglu.h"

#include "core/check.h"

namespace adder {

void validate(const SwigluArgs& args) {
  constexpr auto kOp = "swiglu";
  check_shape(kOp, "x", args.x, {kAny, kAny});
  check_dtype(kOp, "x", args.x, {DType::f32});
  check_rows(kOp, "x", args.x);
  check_shape(kOp, "gate", args.gate, {args.x.dim(0), args.x.dim(1)});
  check_dtype(kOp, "gate", args.gate, {DType::f32});
  check_rows(kOp, "gate", args.gate);
  check_shape(kOp, "y", args.y, {args.x.dim(0), args.x.dim(1)});
  check_dtype(kOp, "y", args.y, {DType::f32});
  check_rows(kOp, "y", args.y);
}

}  // namespace adder
