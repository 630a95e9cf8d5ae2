#include "core/dispatch.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/linear_step/cuda_kernel.h"
#include "ops/linear_step/linear_step.h"

namespace adder::cuda {
namespace {

step::Plan plan_of(const LinearStepArgs& args) {
  const int device = args.weight.device.index;
  return step::plan_of(args.y.dim(0), args.weight.dim(1), args.weight.dim(0),
                       properties(device).multiprocessors);
}

bool aligned(const ConstTensorView& view) { return !view.defined() || rows_aligned(view); }

template <typename X, typename W, typename Y>
step::Params<X, W, Y> params_of(const LinearStepArgs& args) {
  step::Params<X, W, Y> p{};
  p.weight = args.weight.as<W>();
  p.weight_stride = args.weight.stride(0);
  if (args.bias.defined()) p.bias = args.bias.as<float>();
  p.y = args.y.as<Y>();
  p.y_stride = args.y.stride(0);
  p.batch = static_cast<int>(args.y.dim(0));
  p.in = static_cast<int>(args.weight.dim(1));
  p.out = static_cast<int>(args.weight.dim(0));
  if (args.x.defined()) {
    p.x = args.x.as<X>();
    p.x_stride = args.x.stride(0);
  }
  if (const auto& norm = args.norm) {
    p.residual = norm->residual.as<float>();
    p.residual_stride = norm->residual.stride(0);
    if (norm->new_residual.defined()) {
      p.new_residual = norm->new_residual.as<float>();
      p.new_residual_stride = norm->new_residual.stride(0);
    }
    if (norm->y.defined()) {
      p.norm_y = norm->y.as<X>();
      p.norm_y_stride = norm->y.stride(0);
    }
    if (norm->weight.defined()) p.norm_weight = norm->weight.as<float>();
    p.epsilon = norm->epsilon;
  }
  if (const auto& norm = args.gated_norm) {
    p.z = norm->z.as<X>();
    p.z_stride = norm->z.stride(0);
    if (norm->weight.defined()) p.norm_weight = norm->weight.as<float>();
    p.ngroups = static_cast<int>(norm->ngroups);
    p.epsilon = norm->epsilon;
    p.norm_before_gate = norm->norm_before_gate;
    p.normalize = norm->normalize;
  }
  if (const auto& conv = args.conv) {
    p.conv_begin = static_cast<int>(conv->begin);
    p.conv_channels = static_cast<int>(conv->weight.dim(0));
    p.conv_width = static_cast<int>(conv->weight.dim(1));
    p.conv_weight = conv->weight.as<float>();
    p.conv_channel_stride = conv->weight.stride(0);
    p.conv_tap_stride = conv->weight.stride(1);
    if (conv->bias.defined()) p.conv_bias = conv->bias.as<float>();
    p.conv_state = conv->state.as<float>();
    p.conv_sequence_stride = conv->state.stride(0);
    p.conv_row_stride = conv->state.stride(1);
    p.conv_y = conv->y.as<X>();
    p.conv_y_stride = conv->y.stride(0);
  }
  return p;
}

template <typename X, typename W, typename Y>
void run(const LinearStepArgs& args, Stream stream) {
  const bool overlap = properties(args.weight.device.index).compute_capability >= 90;
  step::launch(params_of<X, W, Y>(args), plan_of(args), overlap, stream);
}

}  // namespace

bool can_linear_step(const LinearStepArgs& args) {
  validate(args);
  const std::int64_t batch = args.y.dim(0);
  const std::int64_t in = args.weight.dim(1);
  const std::int64_t out = args.weight.dim(0);
  if (batch < 1 || batch > kMaxLinearStepBatch || out < 1) return false;
  constexpr std::int64_t kMostColumns = 1 << 20;
  if (in > kMostColumns || out > (std::int64_t{1} << 30)) return false;
  // A vector of 16 bytes of the weight, and of x.
  const auto size = static_cast<std::int64_t>(size_of(args.weight.dtype));
  if (in == 0 || in * size % 16 != 0 || in % 4 != 0) return false;
  bool all_aligned = aligned(args.weight) && aligned(args.x);
  if (const auto& norm = args.norm) {
    all_aligned = all_aligned && aligned(norm->residual) && aligned(norm->new_residual) &&
                  aligned(norm->weight) && aligned(norm->y);
  }
  if (const auto& norm = args.gated_norm) {
    all_aligned =
        all_aligned && aligned(norm->z) && aligned(norm->weight) && in / norm->ngroups % 4 == 0;
  }
  if (!all_aligned) return false;
  const DeviceProperties& device = properties(args.weight.device.index);
  return static_cast<std::int64_t>(plan_of(args).shared_bytes) <= device.shared_bytes_per_block;
}

void linear_step(const LinearStepArgs& args, Stream stream) {
  check(
      can_linear_step(args),
      "linear_step: the kernel does not take {} rows of {} columns of these layouts, expected what "
      "can_linear_step agrees to",
      args.y.dim(0), args.weight.dim(1));
  check_current("linear_step", "weight", args.weight);
  visit_float(args.weight.dtype, [&]<typename W>(TypeTag<W>) {
    const DType x_dtype = args.x.defined() ? args.x.dtype : args.y.dtype;
    if (x_dtype == DType::f32) return run<float, W, float>(args, stream);
    if constexpr (sizeof(W) == 2) {
      if (args.y.dtype == DType::f32) return run<W, W, float>(args, stream);
      return run<W, W, W>(args, stream);
    }
  });
}

}  // namespace adder::cuda
