#include "ops/linear_step/linear_step.h"

#include "core/check.h"

namespace adder {
namespace {

constexpr auto kOp = "linear_step";

void check_vector(std::string_view name, const ConstTensorView& view, std::int64_t size,
                  const Device& where) {
  if (!view.defined()) return;
  check_shape(kOp, name, view, {size}, where);
  check_dtype(kOp, name, view, {DType::f32});
  check_contiguous(kOp, name, view);
}

void check_matrix(std::string_view name, const ConstTensorView& view, std::int64_t rows,
                  std::int64_t columns, DType dtype, const Device& where) {
  check_shape(kOp, name, view, {rows, columns}, where);
  check_dtype(kOp, name, view, {dtype});
  check_rows(kOp, name, view);
}

void validate_norm(const LinearStepNorm& norm, const LinearStepArgs& args, std::int64_t batch) {
  const Device where = args.weight.device;
  const std::int64_t in = args.weight.dim(1);
  check_matrix("norm.residual", norm.residual, batch, in, DType::f32, where);
  if (args.x.defined() || norm.new_residual.defined()) {
    check_matrix("norm.new_residual", norm.new_residual, batch, in, DType::f32, where);
    check(norm.new_residual.data != norm.residual.data || batch == 0,
          "linear_step: norm.new_residual is norm.residual, expected another tensor");
  }
  check_vector("norm.weight", norm.weight, in, where);
  if (norm.y.defined()) {
    const DType dtype = args.x.defined() ? args.x.dtype : args.y.dtype;
    check_matrix("norm.y", norm.y, batch, in, dtype, where);
  }
}

void validate_gated_norm(const LinearStepGatedNorm& norm, const LinearStepArgs& args) {
  const Device where = args.weight.device;
  const std::int64_t in = args.weight.dim(1);
  check_matrix("gated_norm.z", norm.z, args.x.dim(0), in, args.x.dtype, where);
  check_vector("gated_norm.weight", norm.weight, in, where);
  check(norm.ngroups >= 1 && in % norm.ngroups == 0,
        "linear_step: gated_norm.ngroups is {}, expected a divisor of {} columns", norm.ngroups,
        in);
}

void validate_conv(const LinearStepConv& conv, const LinearStepArgs& args, std::int64_t batch) {
  const Device where = args.weight.device;
  check_shape(kOp, "conv.weight", conv.weight, {kAny, kAny}, where);
  check_dtype(kOp, "conv.weight", conv.weight, {DType::f32});
  const std::int64_t channels = conv.weight.dim(0);
  const std::int64_t width = conv.weight.dim(1);
  check(width >= 2 && width <= 8, "linear_step: conv.weight has {} taps, expected 2 to 8", width);
  check(conv.begin >= 0 && conv.begin + channels <= args.weight.dim(0),
        "linear_step: conv.begin is {}, expected {} channels to end within {} columns", conv.begin,
        channels, args.weight.dim(0));
  check_vector("conv.bias", conv.bias, channels, where);
  check_shape(kOp, "conv.state", conv.state, {batch, width - 1, channels}, where);
  check_dtype(kOp, "conv.state", conv.state, {DType::f32});
  check_rows(kOp, "conv.state", conv.state);
  check_matrix("conv.y", conv.y, batch, channels, args.y.dtype, where);
}

}  // namespace

void validate(const LinearStepArgs& args) {
  check_shape(kOp, "weight", args.weight, {kAny, kAny}, args.weight.device);
  check_float(kOp, "weight", args.weight);
  check_rows(kOp, "weight", args.weight);
  const Device where = args.weight.device;
  const std::int64_t in = args.weight.dim(1);
  check_shape(kOp, "y", args.y, {kAny, args.weight.dim(0)}, where);
  check_rows(kOp, "y", args.y);
  const std::int64_t batch = args.y.dim(0);
  check(!args.norm || !args.gated_norm, "linear_step: there are norm and gated_norm, expected one");
  check(args.x.defined() || args.norm, "linear_step: x is missing, expected it without a norm");
  if (args.x.defined()) {
    check_shape(kOp, "x", args.x, {batch, in}, where);
    check_float(kOp, "x", args.x);
    check_rows(kOp, "x", args.x);
    if (args.x.dtype != DType::f32) check_dtype(kOp, "weight", args.weight, {args.x.dtype});
  }
  const DType dtype = args.x.defined() ? args.x.dtype : args.y.dtype;
  if (args.conv) {
    check_dtype(kOp, "y", args.y, {dtype});
  } else {
    check_dtype(kOp, "y", args.y, {DType::f32, dtype});
  }
  check_vector("bias", args.bias, args.weight.dim(0), where);
  if (args.norm) validate_norm(*args.norm, args, batch);
  if (args.gated_norm) validate_gated_norm(*args.gated_norm, args);
  if (args.conv) validate_conv(*args.conv, args, batch);
}

}  // namespace adder
