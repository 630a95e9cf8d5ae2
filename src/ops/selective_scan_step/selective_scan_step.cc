#include "ops/selective_scan_step/selective_scan_step.h"

#include "core/check.h"

namespace adder {
namespace {

constexpr auto kOp = "selective_scan_step";

// The view has this shape and dtype, contiguous rows, and is where x is.
void check_tensor(std::string_view argument, const ConstTensorView& view,
                  std::initializer_list<std::int64_t> expected, DType dtype, const Device& where) {
  check_shape(kOp, argument, view, expected, where);
  check_dtype(kOp, argument, view, {dtype});
  check_rows(kOp, argument, view);
}

}  // namespace

void validate(const SelectiveScanStepArgs& args) {
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny}, where);
  check_float(kOp, "x", args.x);
  check_rows(kOp, "x", args.x);
  const auto check_input = [&](std::string_view argument, const ConstTensorView& view,
                               std::initializer_list<std::int64_t> expected) {
    check_tensor(argument, view, expected, args.x.dtype, where);
  };
  const auto check_f32 = [&](std::string_view argument, const ConstTensorView& view,
                             std::initializer_list<std::int64_t> expected) {
    check_tensor(argument, view, expected, DType::f32, where);
  };
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t d_inner = args.x.dim(1);
  check_input("dt", args.dt, {batch, d_inner});
  check_f32("A", args.A, {d_inner, kAny});
  const std::int64_t dstate = args.A.dim(1);
  check(dstate >= 1, "selective_scan_step: A has dstate {}, expected at least 1", dstate);
  check_input("B", args.B, {batch, kAny, dstate});
  const std::int64_t ngroups = args.B.dim(1);
  check(ngroups >= 1 && d_inner % ngroups == 0,
        "selective_scan_step: B has {} groups, expected a divisor of d_inner, {}", ngroups,
        d_inner);
  check_input("C", args.C, {batch, ngroups, dstate});
  if (args.D.defined()) check_f32("D", args.D, {d_inner});
  if (args.z.defined()) check_input("z", args.z, {batch, d_inner});
  if (args.dt_bias.defined()) check_f32("dt_bias", args.dt_bias, {d_inner});
  check_shape(kOp, "state", args.state, {batch, d_inner, dstate}, where);
  check_state(kOp, "state", args.state);
  check_rows(kOp, "state", args.state);
  check_input("y", args.y, {batch, d_inner});
}

}  // namespace adder
