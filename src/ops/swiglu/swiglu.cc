#include "ops/swiglu/swiglu.h"

#include "core/check.h"

namespace adder {

void validate(const SwigluArgs& args) {
  constexpr auto kOp = "swiglu";
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny}, where);
  check_float(kOp, "x", args.x);
  check_rows(kOp, "x", args.x);
  check_shape(kOp, "gate", args.gate, {args.x.dim(0), args.x.dim(1)}, where);
  check_dtype(kOp, "gate", args.gate, {args.x.dtype});
  check_rows(kOp, "gate", args.gate);
  check_shape(kOp, "y", args.y, {args.x.dim(0), args.x.dim(1)}, where);
  check_dtype(kOp, "y", args.y, {args.x.dtype});
  check_rows(kOp, "y", args.y);
}

}  // namespace adder
