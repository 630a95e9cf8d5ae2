#include "ops/ssd_step/ssd_step.h"

#include "core/check.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder {
void validate(const SsdStepArgs& args) {
  constexpr auto kOp = "ssd_step";
  const Device where = args.x.device;
  const auto check_tensor = [&](const char* name, const ConstTensorView& view,
                                std::initializer_list<std::int64_t> shape, DType dtype) {
    check_shape(kOp, name, view, shape, where);
    check_dtype(kOp, name, view, {dtype});
  };
  check_shape(kOp, "x", args.x, {kAny, kAny, kAny}, where);
  check_dtype(kOp, "x", args.x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", args.x);
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t nheads = args.x.dim(1);
  const std::int64_t headdim = args.x.dim(2);
  check(nheads >= 1 && headdim >= 1, "ssd_step: x has {} heads of {}, expected at least 1 of 1",
        nheads, headdim);
  check_shape(kOp, "dt", args.dt, {batch, nheads}, where);
  if (where.type == DeviceType::cuda) {
    check_dtype(kOp, "dt", args.dt, {DType::f32, args.x.dtype});
  } else {
    check_dtype(kOp, "dt", args.dt, {DType::f32});
  }
  check_tensor("A", args.A, {nheads}, DType::f32);
  check_contiguous(kOp, "A", args.A);
  check_tensor("B", args.B, {batch, kAny, kAny}, args.x.dtype);
  check_rows(kOp, "B", args.B);
  const std::int64_t ngroups = args.B.dim(1);
  const std::int64_t dstate = args.B.dim(2);
  check(ngroups >= 1 && nheads % ngroups == 0,
        "ssd_step: B has {} groups, expected a divisor of the {} heads", ngroups, nheads);
  check(dstate >= 1, "ssd_step: B has a dstate of {}, expected at least 1", dstate);
  check_tensor("C", args.C, {batch, ngroups, dstate}, args.x.dtype);
  check_rows(kOp, "C", args.C);
  if (args.D.defined()) {
    if (args.D.rank == 1) {
      check_tensor("D", args.D, {nheads}, DType::f32);
    } else {
      check_tensor("D", args.D, {nheads, headdim}, DType::f32);
    }
    check_contiguous(kOp, "D", args.D);
  }
  if (args.z.defined()) {
    check_tensor("z", args.z, {batch, nheads, headdim}, args.x.dtype);
    check_rows(kOp, "z", args.z);
  }
  if (args.dt_bias.defined()) {
    check_tensor("dt_bias", args.dt_bias, {nheads}, DType::f32);
    check_contiguous(kOp, "dt_bias", args.dt_bias);
  }
  validate(kOp, DtOptions{args.dt_softplus, args.dt_min, args.dt_max});
  check_shape(kOp, "state", args.state, {batch, nheads, headdim, dstate}, where);
  check_state(kOp, "state", args.state);
  check_rows(kOp, "state", args.state);
  check_tensor("y", args.y, {batch, nheads, headdim}, args.x.dtype);
  check_rows(kOp, "y", args.y);
}

}  // namespace adder
