#include "ops/chunk_cumsum/chunk_cumsum.h"

#include "core/check.h"

namespace adder {

void validate(std::string_view op, const DtOptions& options) {
  check(options.min >= 0 && options.min <= options.max,
        "{}: the limits of dt are {} and {}, expected 0 <= dt_min <= dt_max", op, options.min,
        options.max);
}

void validate(const ChunkCumsumArgs& args) {
  constexpr auto kOp = "chunk_cumsum";
  const Device where = args.dt_raw.device;
  check_shape(kOp, "dt_raw", args.dt_raw, {kAny, kAny, kAny}, where);
  check_float(kOp, "dt_raw", args.dt_raw);
  const std::int64_t nheads = args.dt_raw.dim(2);
  check_shape(kOp, "A", args.A, {nheads}, where);
  check_dtype(kOp, "A", args.A, {DType::f32});
  check_contiguous(kOp, "A", args.A);
  if (args.dt_bias.defined()) {
    check_shape(kOp, "dt_bias", args.dt_bias, {nheads}, where);
    check_dtype(kOp, "dt_bias", args.dt_bias, {DType::f32});
    check_contiguous(kOp, "dt_bias", args.dt_bias);
  }
  validate(kOp, args.dt_options);
  check_plan(kOp, args.plan, args.dt_raw.dim(0), args.dt_raw.dim(1), where);
  check_shape(kOp, "dt", args.dt, {nheads, args.plan.nchunks(), args.plan.chunk_size}, where);
  check_dtype(kOp, "dt", args.dt, {DType::f32});
  check_contiguous(kOp, "dt", args.dt);
  check_shape(kOp, "dA_cumsum", args.dA_cumsum,
              {nheads, args.plan.nchunks(), 2, args.plan.chunk_size}, where);
  check_dtype(kOp, "dA_cumsum", args.dA_cumsum, {DType::f32});
  check_contiguous(kOp, "dA_cumsum", args.dA_cumsum);
}

}  // namespace adder
