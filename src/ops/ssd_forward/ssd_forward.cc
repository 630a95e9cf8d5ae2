#include "ops/ssd_forward/ssd_forward.h"

#include <array>

#include "core/check.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder {
namespace {

constexpr auto kOp = "ssd_forward";

// `where` of every tensor is that of x.
void check_tensor(const char* name, const ConstTensorView& view,
                  std::initializer_list<std::int64_t> shape, DType dtype, const Device& where) {
  check_shape(kOp, name, view, shape, where);
  check_dtype(kOp, name, view, {dtype});
}

void check_states(const char* name, const ConstTensorView& states,
                  std::initializer_list<std::int64_t> shape, const Device& where) {
  if (!states.defined()) return;
  check_tensor(name, states, shape, DType::f32, where);
  check_rows(kOp, name, states);
}

void check_dt(const SsdForwardArgs& args) {
  const Device where = args.x.device;
  check_shape(kOp, "dt", args.dt, {args.x.dim(0), args.x.dim(1), args.x.dim(2)}, where);
  if (where.type == DeviceType::cuda) {
    check_dtype(kOp, "dt", args.dt, {DType::f32, args.x.dtype});
  } else {
    check_dtype(kOp, "dt", args.dt, {DType::f32});
  }
}

void check_per_head(const SsdForwardArgs& args, std::int64_t nheads, std::int64_t headdim) {
  const Device where = args.x.device;
  check_tensor("A", args.A, {nheads}, DType::f32, where);
  check_contiguous(kOp, "A", args.A);
  if (args.D.defined()) {
    if (args.D.rank == 1) {
      check_tensor("D", args.D, {nheads}, DType::f32, where);
    } else {
      check_tensor("D", args.D, {nheads, headdim}, DType::f32, where);
    }
    check_contiguous(kOp, "D", args.D);
  }
  if (args.dt_bias.defined()) {
    check_tensor("dt_bias", args.dt_bias, {nheads}, DType::f32, where);
    check_contiguous(kOp, "dt_bias", args.dt_bias);
  }
}

}  // namespace

void validate(const SsdForwardArgs& args) {
  const Device where = args.x.device;
  check_shape(kOp, "x", args.x, {kAny, kAny, kAny, kAny}, where);
  check_dtype(kOp, "x", args.x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", args.x);
  const std::int64_t batch = args.x.dim(0);
  const std::int64_t seqlen = args.x.dim(1);
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  check(nheads >= 1 && headdim >= 1, "ssd_forward: x has {} heads of {}, expected at least 1 of 1",
        nheads, headdim);
  check_dt(args);
  check_tensor("B", args.B, {batch, seqlen, kAny, kAny}, args.x.dtype, where);
  check_rows(kOp, "B", args.B);
  const std::int64_t ngroups = args.B.dim(2);
  const std::int64_t dstate = args.B.dim(3);
  check(ngroups >= 1 && nheads % ngroups == 0,
        "ssd_forward: B has {} groups, expected a divisor of the {} heads", ngroups, nheads);
  check(dstate >= 1, "ssd_forward: B has a dstate of {}, expected at least 1", dstate);
  check_tensor("C", args.C, {batch, seqlen, ngroups, dstate}, args.x.dtype, where);
  check_rows(kOp, "C", args.C);
  check_per_head(args, nheads, headdim);
  if (args.z.defined()) {
    check_tensor("z", args.z, {batch, seqlen, nheads, headdim}, args.x.dtype, where);
    check_rows(kOp, "z", args.z);
  }
  validate(kOp, DtOptions{args.dt_softplus, args.dt_min, args.dt_max});
  validate(kOp, ChunkPlanArgs{batch, seqlen, args.chunk_size, args.cu_seqlens, args.seq_idx},
           where);
  const std::int64_t nsequences = args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : batch;
  check_states("initial_states", args.initial_states, {nsequences, nheads, headdim, dstate}, where);
  check_tensor("y", args.y, {batch, seqlen, nheads, headdim}, args.x.dtype, where);
  check_rows(kOp, "y", args.y);
  check_states("final_states", args.final_states, {nsequences, nheads, headdim, dstate}, where);
}

std::string_view cuda::name_of(SsdForwardVariant variant) {
  constexpr std::array<std::string_view, 2> kNames = {"general", "hopper"};
  const auto index = static_cast<std::size_t>(variant);
  check(index < kNames.size(), "ssd_forward: there is no variant {}", index);
  return kNames[index];
}

}  // namespace adder
