#include "ops/fwd_pass_state/fwd_pass_state.h"

#include "core/check.h"

namespace adder {

void validate(const FwdPassStateArgs& args) {
  constexpr auto kOp = "fwd_pass_state";
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny, kAny, kAny}, where);
  check_dtype(kOp, "x", args.x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", args.x);
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t seqlen = args.x.dim(1);
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  check_shape(kOp, "B", args.B, {batch, seqlen, kAny, kAny}, where);
  check_dtype(kOp, "B", args.B, {args.x.dtype});
  check_rows(kOp, "B", args.B);
  const std::int64_t ngroups = args.B.dim(2);
  const std::int64_t dstate = args.B.dim(3);
  check(ngroups >= 1 && nheads % ngroups == 0,
        "fwd_pass_state: B has {} groups, expected a divisor of the {} heads", ngroups, nheads);
  check_plan(kOp, args.plan, batch, seqlen, where);
  const std::int64_t nchunks = args.plan.nchunks();
  const std::int64_t nsequences = args.plan.nsequences();
  check_shape(kOp, "dt", args.dt, {nheads, nchunks, args.plan.chunk_size}, where);
  check_dtype(kOp, "dt", args.dt, {DType::f32});
  check_contiguous(kOp, "dt", args.dt);
  check_shape(kOp, "dA_cumsum", args.dA_cumsum, {nheads, nchunks, 2, args.plan.chunk_size}, where);
  check_dtype(kOp, "dA_cumsum", args.dA_cumsum, {DType::f32});
  check_contiguous(kOp, "dA_cumsum", args.dA_cumsum);
  if (args.initial_states.defined()) {
    check_shape(kOp, "initial_states", args.initial_states, {nsequences, nheads, headdim, dstate},
                where);
    check_dtype(kOp, "initial_states", args.initial_states, {DType::f32});
    check_rows(kOp, "initial_states", args.initial_states);
  }
  check_shape(kOp, "states", args.states, {nchunks, nheads, dstate, padded_headdim(headdim)},
              where);
  check_dtype(kOp, "states", args.states, {DType::f32});
  check_contiguous(kOp, "states", args.states);
  if (args.final_states.defined()) {
    check_shape(kOp, "final_states", args.final_states, {nsequences, nheads, headdim, dstate},
                where);
    check_dtype(kOp, "final_states", args.final_states, {DType::f32});
    check_rows(kOp, "final_states", args.final_states);
  }
}

}  // namespace adder
