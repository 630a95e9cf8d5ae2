#include "backend/cuda/step_fuser.h"

#include "backend/operands.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder {
void StepFuser::run_program() {
  if (program_.is_empty()) return;
  kernels_.push_back(program_.compile());
  kernels_.back()->launch(stream_);
}

void StepFuser::append_held() {
  if (norm_) {
    const Norm norm = std::move(*norm_);
    norm_.reset();
    run_program();
    norm.run();
  }
  if (linear_) {
    const Linear linear = std::move(*linear_);
    linear_.reset();
    read_last_ = linear.keep;
    if (program_.add(linear.args)) return;
    run_program();
    cuda::linear_step(linear.args, stream_);
  }
}

void StepFuser::flush() {
  append_held();
  run_program();
}

template <typename Args>
bool StepFuser::append(const Args& args) {
  append_held();
  if (program_.add(args)) return true;
  run_program();
  return false;
}

bool StepFuser::ssd_step(const SsdStepArgs& args) { return append(args); }

bool StepFuser::selective_scan_step(const SelectiveScanStepArgs& args) { return append(args); }

void StepFuser::norm(const Tensor& residual, const Tensor& x, const Tensor& new_residual,
                     const Tensor& weight, float epsilon, const Tensor& y) {
  append_held();
  Norm held{.run = {}, .output = y, .args = {}, .keep = {residual, x, new_residual, weight}};
  held.args.x = x.view;
  held.args.norm = LinearStepNorm{.residual = residual.view,
                                  .new_residual = new_residual.view,
                                  .weight = weight.view,
                                  .epsilon = epsilon};
  held.run = [=, stream = stream_] {
    TensorView sum = residual.view;
    if (x.defined()) {
      // In place of the one by one kernel's update of its residual.
      cuda::copy_on_device(new_residual.view.data, residual.view.data,
                           static_cast<std::size_t>(residual.view.size_bytes()), stream);
      sum = new_residual.view;
    }
    cuda::rms_norm(
        {.residual = sum, .x = x.view, .weight = weight.view, .y = y.view, .epsilon = epsilon},
        stream);
  };
  norm_ = std::move(held);
}

void StepFuser::gated_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                           const GatedNormOptions& options, const Tensor& out) {
  append_held();
  Norm held{.run = {}, .output = out, .args = {}, .keep = {y, z, weight}};
  held.args.x = y.view;
  held.args.gated_norm = LinearStepGatedNorm{.z = z.view,
                                             .weight = weight.view,
                                             .ngroups = options.ngroups,
                                             .epsilon = options.epsilon,
                                             .norm_before_gate = options.norm_before_gate,
                                             .normalize = options.normalize};
  held.run = [=, stream = stream_] {
    cuda::gated_rms_norm(operands::gated_rms_norm(y, z, weight, options, out), stream);
  };
  norm_ = std::move(held);
}

bool StepFuser::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                       bool keeps_x) {
  Linear next{.args = {}, .keep = {x, weight, bias, y}};
  bool takes_norm = norm_ && norm_->output.view.data == x.view.data;
  if (takes_norm && keeps_x) {
    const ConstTensorView& before = norm_->args.x;
    takes_norm = norm_->args.norm && x.view.dtype == (before.defined() ? before : y.view).dtype;
  }
  if (takes_norm) {
    next.args = norm_->args;
    next.keep.insert(next.keep.end(), norm_->keep.begin(), norm_->keep.end());
    if (keeps_x) next.args.norm->y = norm_->output.view;
  } else {
    next.args.x = x.view;
  }
  next.args.weight = weight.view;
  next.args.bias = bias.view;
  next.args.y = y.view;
  if (!cuda::can_linear_step(next.args)) {
    flush();
    return false;
  }
  if (takes_norm) norm_.reset();
  append_held();
  linear_ = std::move(next);
  return true;
}

bool StepFuser::convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& state, const Tensor& y) {
  if (!linear_ || linear_->args.conv) return false;
  const std::optional<std::int64_t> begin = cuda::column_within(linear_->args.y, x.view);
  if (!begin || linear_->args.y.dtype != y.view.dtype) return false;
  linear_->args.conv = LinearStepConv{
      .begin = *begin, .weight = weight.view, .bias = bias.view, .state = state.view, .y = y.view};
  linear_->keep.insert(linear_->keep.end(), {x, weight, bias, state, y});
  append_held();
  return true;
}

}  // namespace adder
