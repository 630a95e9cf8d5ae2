#include "ops/selective_scan/selective_scan.h"

#include "core/check.h"

namespace adder {
namespace {

constexpr auto kOp = "selective_scan";

// The view has this shape and dtype, contiguous rows, and is where x is.
void check_tensor(std::string_view argument, const ConstTensorView& view,
                  std::initializer_list<std::int64_t> expected, DType dtype, const Device& where) {
  check_shape(kOp, argument, view, expected, where);
  check_dtype(kOp, argument, view, {dtype});
  check_rows(kOp, argument, view);
}

}  // namespace

void validate(const SelectiveScanArgs& args) {
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny, kAny}, where);
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
  const std::int64_t seqlen = args.x.dim(1);
  const std::int64_t d_inner = args.x.dim(2);
  check_input("dt", args.dt, {batch, seqlen, d_inner});
  check_f32("A", args.A, {d_inner, kAny});
  const std::int64_t dstate = args.A.dim(1);
  check(dstate >= 1 && dstate <= kMaxScanStates,
        "selective_scan: A has dstate {}, expected 1 to {}", dstate, kMaxScanStates);
  check_input("B", args.B, {batch, seqlen, kAny, dstate});
  const std::int64_t ngroups = args.B.dim(2);
  check(ngroups >= 1 && d_inner % ngroups == 0,
        "selective_scan: B has {} groups, expected a divisor of d_inner, {}", ngroups, d_inner);
  check_input("C", args.C, {batch, seqlen, ngroups, dstate});
  if (args.D.defined()) check_f32("D", args.D, {d_inner});
  if (args.z.defined()) check_input("z", args.z, {batch, seqlen, d_inner});
  if (args.dt_bias.defined()) check_f32("dt_bias", args.dt_bias, {d_inner});
  check_input("y", args.y, {batch, seqlen, d_inner});
  std::int64_t nsequences = batch;
  if (args.cu_seqlens.defined()) {
    check(batch == 1, "selective_scan: x has batch {}, expected 1 when cu_seqlens is given", batch);
    check_cu_seqlens(kOp, args.cu_seqlens, seqlen, where);
    nsequences = args.cu_seqlens.dim(0) - 1;
  }
  if (args.initial_states.defined()) {
    check_f32("initial_states", args.initial_states, {nsequences, d_inner, dstate});
  }
  if (args.final_states.defined()) {
    check_f32("final_states", args.final_states, {nsequences, d_inner, dstate});
  }
  if (args.seq_idx.defined()) {
    check_shape(kOp, "seq_idx", args.seq_idx, {batch, seqlen}, where);
    check_dtype(kOp, "seq_idx", args.seq_idx, {DType::i32});
    check_rows(kOp, "seq_idx", args.seq_idx);
  }
}

}  // namespace adder
