#include "ops/selective_scan_step/selective_scan_step.h"

#include "core/check.h"

namespace adder {
namespace {

constexpr auto kOp = "selective_scan_step";

void check_f32_rows(std::string_view argument, const ConstTensorView& view,
                    std::initializer_list<std::int64_t> expected) {
  check_shape(kOp, argument, view, expected);
  check_dtype(kOp, argument, view, {DType::f32});
  check_rows(kOp, argument, view);
}

}  // namespace

void validate(const SelectiveScanStepArgs& args) {
  check_f32_rows("x", args.x, {kAny, kAny});
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t d_inner = args.x.dim(1);
  check_f32_rows("dt", args.dt, {batch, d_inner});
  check_f32_rows("A", args.A, {d_inner, kAny});
  const std::int64_t dstate = args.A.dim(1);
  check(dstate >= 1, "selective_scan_step: A has dstate {}, expected at least 1", dstate);
  check_f32_rows("B", args.B, {batch, kAny, dstate});
  const std::int64_t ngroups = args.B.dim(1);
  check(ngroups >= 1 && d_inner % ngroups == 0,
        "selective_scan_step: B has {} groups, expected a divisor of d_inner, {}", ngroups,
        d_inner);
  check_f32_rows("C", args.C, {batch, ngroups, dstate});
  if (args.D.defined()) check_f32_rows("D", args.D, {d_inner});
  if (args.z.defined()) check_f32_rows("z", args.z, {batch, d_inner});
  if (args.dt_bias.defined()) check_f32_rows("dt_bias", args.dt_bias, {d_inner});
  check_f32_rows("state", args.state, {batch, d_inner, dstate});
  check_f32_rows("y", args.y, {batch, d_inner});
}

}  // namespace adder
