#include "ops/selective_scan/selective_scan.h"

#include "core/check.h"

namespace adder {
namespace {

constexpr auto kOp = "selective_scan";

void check_f32_rows(std::string_view argument, const ConstTensorView& view,
                    std::initializer_list<std::int64_t> expected) {
  check_shape(kOp, argument, view, expected);
  check_dtype(kOp, argument, view, {DType::f32});
  check_rows(kOp, argument, view);
}

}  // namespace

void validate(const SelectiveScanArgs& args) {
  check_f32_rows("x", args.x, {kAny, kAny, kAny});
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t seqlen = args.x.dim(1);
  const std::int64_t d_inner = args.x.dim(2);
  check_f32_rows("dt", args.dt, {batch, seqlen, d_inner});
  check_f32_rows("A", args.A, {d_inner, kAny});
  const std::int64_t dstate = args.A.dim(1);
  check(dstate >= 1 && dstate <= kMaxScanStates,
        "selective_scan: A has dstate {}, expected 1 to {}", dstate, kMaxScanStates);
  check_f32_rows("B", args.B, {batch, seqlen, kAny, dstate});
  const std::int64_t ngroups = args.B.dim(2);
  check(ngroups >= 1 && d_inner % ngroups == 0,
        "selective_scan: B has {} groups, expected a divisor of d_inner, {}", ngroups, d_inner);
  check_f32_rows("C", args.C, {batch, seqlen, ngroups, dstate});
  if (args.D.defined()) check_f32_rows("D", args.D, {d_inner});
  if (args.z.defined()) check_f32_rows("z", args.z, {batch, seqlen, d_inner});
  if (args.dt_bias.defined()) check_f32_rows("dt_bias", args.dt_bias, {d_inner});
  check_f32_rows("y", args.y, {batch, seqlen, d_inner});
  std::int64_t nsequences = batch;
  if (args.cu_seqlens.defined()) {
    check(batch == 1, "selective_scan: x has batch {}, expected 1 when cu_seqlens is given", batch);
    check_cu_seqlens(kOp, args.cu_seqlens, seqlen);
    nsequences = args.cu_seqlens.dim(0) - 1;
  }
  if (args.initial_states.defined()) {
    check_f32_rows("initial_states", args.initial_states, {nsequences, d_inner, dstate});
  }
  if (args.final_states.defined()) {
    check_f32_rows("final_states", args.final_states, {nsequences, d_inner, dstate});
  }
  if (args.seq_idx.defined()) {
    check_shape(kOp, "seq_idx", args.seq_idx, {batch, seqlen});
    check_dtype(kOp, "seq_idx", args.seq_idx, {DType::i32});
    check_rows(kOp, "seq_idx", args.seq_idx);
  }
}

}  // namespace adder
