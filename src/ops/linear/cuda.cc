#include <algorithm>
#include <string_view>

#include "core/ceil_div.h"
#include "core/dispatch.h"
#include "core/workspace.h"
#include "cuda/blas.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/linear/cuda_kernel.h"
#include "ops/linear/linear.h"

namespace adder::cuda {
namespace {

// Rows of what is made in the workspace start at multiples of 16 bytes.
std::int64_t padded(std::int64_t in) { return round_up(in, 8); }

// ---- which way ----------------------------------------------------------------------------------

enum class Method {
  few_tokens,
  product,  ///< x and the weight as they are
  split,    ///< x in three parts of bf16
  widen     ///< the weight as f32
};

Method method_of(const LinearArgs& args, const ConstTensorView& weight) {
  if (args.x.dim(0) <= kFewTokens) return Method::few_tokens;
  if (args.x.dtype == weight.dtype) return Method::product;
  return weight.dtype == DType::bf16 ? Method::split : Method::widen;
}

struct Workspace {
  bf16* parts[3];
  float* widened;
  float* unrounded;  ///< y, where a bias is added to it before it is rounded
  std::byte* product;
};

Workspace take_workspace(WorkspaceCutter& cutter, const LinearArgs& args,
                         const ConstTensorView& weight) {
  Workspace out{};
  const Method method = method_of(args, weight);
  if (method == Method::few_tokens) return out;
  const std::int64_t in = padded(weight.dim(1));
  out.product = cutter.take<std::byte>(std::int64_t{kMatrixProductWorkspaceBytes});
  if (method == Method::split) {
    for (bf16*& part : out.parts) part = cutter.take<bf16>(args.x.dim(0) * in);
  } else if (method == Method::widen) {
    out.widened = cutter.take<float>(weight.dim(0) * in);
  }
  if (args.bias.defined() && args.y.dtype != DType::f32) {
    out.unrounded = cutter.take<float>(args.y.dim(0) * padded(args.y.dim(1)));
  }
  return out;
}

void check_weight(const LinearArgs& args, const ConstTensorView& weight) {
  constexpr auto kOp = "linear";
  check_shape(kOp, "weight", weight, {kAny, kAny}, args.x.device);
  check(weight.dim(1) > 0, "linear: weight has shape {}, expected at least one column",
        shape_string(weight.dims()));
  check_float(kOp, "weight", weight);
  if (args.x.dtype != DType::f32) check_dtype(kOp, "weight", weight, {args.x.dtype});
  check_rows(kOp, "weight", weight);
  validate(args, weight.dim(0), weight.dim(1));
}

// cuBLASLt takes rows that follow each other.
void check_strides(std::string_view name, const ConstTensorView& view) {
  check(view.dim(0) <= 1 || view.stride(0) >= view.dim(1),
        "linear: {} has row stride {}, expected at least {} for more than {} tokens on a device",
        name, view.stride(0), view.dim(1), kFewTokens);
}

// ---- few tokens ---------------------------------------------------------------------------------

template <typename X, typename W, typename Y>
void run_few_tokens(const LinearArgs& args, const ConstTensorView& weight, Stream stream) {
  const linear_kernels::Params<X, W, Y> params{
      .x = args.x.as<X>(),
      .weight = weight.as<W>(),
      .bias = args.bias.defined() ? args.bias.as<float>() : nullptr,
      .y = args.y.as<Y>(),
      .x_stride = args.x.stride(0),
      .weight_stride = weight.stride(0),
      .y_stride = args.y.stride(0),
      .ntokens = args.x.dim(0),
      .in = weight.dim(1),
      .out = weight.dim(0),
      .accumulate = args.accumulate};
  const bool vectorized = rows_aligned(args.x) && rows_aligned(weight) &&
                          params.in * static_cast<std::int64_t>(sizeof(W)) % 16 == 0;
  launch_few_tokens(params, vectorized, stream);
}

void few_tokens(const LinearArgs& args, const ConstTensorView& weight, Stream stream) {
  visit_float(weight.dtype, [&]<typename W>(TypeTag<W>) {
    if (args.x.dtype == DType::f32) return run_few_tokens<float, W, float>(args, weight, stream);
    if constexpr (sizeof(W) == 2) {
      if (args.y.dtype == DType::f32) return run_few_tokens<W, W, float>(args, weight, stream);
      return run_few_tokens<W, W, W>(args, weight, stream);
    }
  });
}

// ---- many ---------------------------------------------------------------------------------------

MatrixProduct product_of(const LinearArgs& args, const ConstTensorView& weight) {
  return {.x = args.x.data,
          .weight = weight.data,
          .y = args.y.data,
          .rows = args.x.dim(0),
          .out = weight.dim(0),
          .in = weight.dim(1),
          .x_stride = args.x.stride(0),
          .weight_stride = weight.stride(0),
          .y_stride = args.y.stride(0),
          .dtype = weight.dtype,
          .y_dtype = args.y.dtype,
          .accumulate = args.accumulate || args.bias.defined()};
}

// y += x · Wᵀ, or = where y holds neither a bias nor what is added to, in one of several ways.
void multiply_many(const LinearArgs& args, const ConstTensorView& weight, const Workspace& w,
                   Stream stream) {
  const std::span<std::byte> workspace(w.product, kMatrixProductWorkspaceBytes);
  MatrixProduct product = product_of(args, weight);
  const std::int64_t stride = padded(product.in);
  switch (method_of(args, weight)) {
    case Method::split: {
      linear_kernels::launch_split({args.x.as<float>(), product.rows, product.in, product.x_stride},
                                   w.parts, stride, stream);
      product.x_stride = stride;
      for (int i = 2; i >= 0; --i) {  // the smallest first
        product.x = w.parts[i];
        multiply(product, workspace, stream);
        product.accumulate = true;
      }
      return;
    }
    case Method::widen:
      linear_kernels::launch_widen(
          {weight.as<f16>(), product.out, product.in, product.weight_stride}, w.widened, stride,
          stream);
      product.weight = w.widened;
      product.weight_stride = stride;
      product.dtype = DType::f32;
      return multiply(product, workspace, stream);
    default:
      return multiply(product, workspace, stream);
  }
}

void many_tokens(LinearArgs args, const ConstTensorView& weight, const Workspace& w,
                 Stream stream) {
  const std::int64_t rows = args.y.dim(0);
  const std::int64_t out = args.y.dim(1);
  const TensorView y = args.y;
  if (w.unrounded != nullptr) {
    args.y = TensorView(w.unrounded, DType::f32, {rows, padded(out)}, y.device).narrow(1, 0, out);
  }
  const std::int64_t stride = args.y.stride(0);
  if (args.bias.defined()) {
    linear_kernels::launch_bias({args.y.as<float>(), rows, out, stride}, args.bias.as<float>(),
                                args.accumulate, stream);
  }
  multiply_many(args, weight, w, stream);
  if (w.unrounded == nullptr) return;
  visit_float(y.dtype, [&]<typename Y>(TypeTag<Y>) {
    if constexpr (sizeof(Y) == 2) {
      linear_kernels::launch_round<Y>({w.unrounded, rows, out, stride},
                                      {y.as<Y>(), rows, out, y.stride(0)}, stream);
    }
  });
}

}  // namespace

std::size_t linear_workspace_bytes(const LinearArgs& args, const ConstTensorView& weight) {
  check_weight(args, weight);
  if (method_of(args, weight) == Method::few_tokens) return 0;
  WorkspaceCutter cutter;
  take_workspace(cutter, args, weight);
  return cutter.bytes();
}

void linear(const LinearArgs& args, const ConstTensorView& weight, std::span<std::byte> workspace,
            Stream stream) {
  const std::size_t needed = linear_workspace_bytes(args, weight);
  if (args.y.numel() == 0) return;
  check_current("linear", "x", args.x);
  if (needed == 0) return few_tokens(args, weight, stream);
  check(workspace.size() >= needed, "linear: workspace has {} bytes, expected at least {}",
        workspace.size(), needed);
  check_strides("x", args.x);
  check_strides("weight", weight);
  check_strides("y", args.y);
  constexpr std::uintptr_t kWorkspaceAlignment = 256;
  check(reinterpret_cast<std::uintptr_t>(workspace.data()) % kWorkspaceAlignment == 0,
        "linear: workspace is not aligned, expected it at a multiple of {} bytes",
        kWorkspaceAlignment);
  WorkspaceCutter cutter(workspace);
  many_tokens(args, weight, take_workspace(cutter, args, weight), stream);
}

}  // namespace adder::cuda
