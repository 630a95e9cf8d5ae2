#include "ops/compute_out/compute_out.h"

#include "core/check.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"

namespace adder {

void validate(const ComputeOutArgs& args) {
  constexpr auto kOp = "compute_out";
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny, kAny, kAny}, where);
  check_dtype(kOp, "x", args.x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", args.x);
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t seqlen = args.x.dim(1);
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  const auto check_rows_like = [&](const char* name, const ConstTensorView& view,
                                   std::initializer_list<std::int64_t> shape) {
    check_shape(kOp, name, view, shape, where);
    check_dtype(kOp, name, view, {args.x.dtype});
    check_rows(kOp, name, view);
  };
  const auto check_packed = [&](const char* name, const ConstTensorView& view,
                                std::initializer_list<std::int64_t> shape) {
    check_shape(kOp, name, view, shape, where);
    check_dtype(kOp, name, view, {DType::f32});
    check_contiguous(kOp, name, view);
  };
  check_rows_like("B", args.B, {batch, seqlen, kAny, kAny});
  const std::int64_t ngroups = args.B.dim(2);
  const std::int64_t dstate = args.B.dim(3);
  check(ngroups >= 1 && nheads % ngroups == 0,
        "compute_out: B has {} groups, expected a divisor of the {} heads", ngroups, nheads);
  check_rows_like("C", args.C, {batch, seqlen, ngroups, dstate});
  check_plan(kOp, args.plan, batch, seqlen, where);
  const std::int64_t nchunks = args.plan.nchunks();
  check_packed("dt", args.dt, {nheads, nchunks, args.plan.chunk_size});
  check_packed("dA_cumsum", args.dA_cumsum, {nheads, nchunks, 2, args.plan.chunk_size});
  check_packed("states", args.states, {nchunks, nheads, dstate, padded_headdim(headdim)});
  if (args.D.defined()) {
    if (args.D.rank == 1) {
      check_packed("D", args.D, {nheads});
    } else {
      check_packed("D", args.D, {nheads, headdim});
    }
  }
  if (args.z.defined()) check_rows_like("z", args.z, {batch, seqlen, nheads, headdim});
  check_rows_like("y", args.y, {batch, seqlen, nheads, headdim});
}

}  // namespace adder
