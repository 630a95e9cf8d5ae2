#pragma once

// A projection of a decode step together with what comes right before and after it, for a token
// each of a few sequences: one kernel on a CUDA device in place of three, which would take longer
// to begin and end than to compute.
//
//   v = x,  or rms_norm(residual + x),  or gated_rms_norm(x, z)        (see rms_norm,
//   gated_rms_norm) y = v · Wᵀ + bias (see linear) some columns of y through causal_conv1d with
//   SiLU and their state       (see causal_conv1d)

#include <cstdint>
#include <optional>

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"

namespace adder {

/// What comes before the product: r = residual + x, v = r / rms(r) · weight.
struct LinearStepNorm {
  /// (batch, in_features) f32.
  ConstTensorView residual;
  /// Like residual, and other memory: r. Optional without x.
  TensorView new_residual{};
  /// (in_features) f32, optional: all ones.
  ConstTensorView weight{};
  float epsilon = 1e-5F;
  /// (batch, in_features) of the dtype of x, or of y without x, optional: v, if others read it.
  TensorView y{};
};

/// Likewise: the norm of each of `ngroups` groups of x · silu(z), or the gate after the norm of x,
/// or the gate alone.
struct LinearStepGatedNorm {
  /// Like x.
  ConstTensorView z;
  /// (in_features) f32, optional: all ones.
  ConstTensorView weight{};
  std::int64_t ngroups = 1;
  float epsilon = 1e-5F;
  bool norm_before_gate = false;
  bool normalize = true;
};

/// What comes after it: columns [begin, begin + channels) of the product go through the convolution
/// and not to y.
struct LinearStepConv {
  std::int64_t begin = 0;
  /// (channels, width) f32, any strides, width 2 to 8.
  ConstTensorView weight;
  /// (channels) f32, contiguous, optional.
  ConstTensorView bias{};
  /// (batch, width - 1, channels) f32, rows contiguous, updated: the inputs before this one.
  TensorView state{};
  /// (batch, channels), dtype of x, rows contiguous: silu of the convolution.
  TensorView y{};
};

/// Arguments of linear_step, all in memory of one CUDA device. Rows are contiguous and have free
/// strides.
struct LinearStepArgs {
  /// (batch, in_features) f32, bf16 or f16; with a norm optional: without it, r = residual.
  ConstTensorView x;
  /// (out_features, in_features): f32, bf16 or f16 where x is f32, else of the dtype of x.
  ConstTensorView weight;
  /// (out_features) f32, contiguous, optional.
  ConstTensorView bias{};
  /// (batch, out_features), f32 or the dtype of x; that of x with a convolution. Columns that go
  /// through the convolution keep what they hold.
  TensorView y;
  /// At most one of the two.
  std::optional<LinearStepNorm> norm{};
  std::optional<LinearStepGatedNorm> gated_norm{};
  std::optional<LinearStepConv> conv{};
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented.
void validate(const LinearStepArgs& args);

namespace cuda {

inline constexpr std::int64_t kMaxLinearStepBatch = 8;

/// Whether the current device's kernel takes the arguments: up to kMaxLinearStepBatch rows, aligned
/// to 16 bytes and a multiple of that long, that fit into shared memory as float32. Else the
/// operations have to be called one by one.
bool can_linear_step(const LinearStepArgs& args);

/// Puts the work on the stream and returns. All arithmetic is float32; v is not rounded. A sequence
/// gives the same bits whatever the others are. Reads the weight before it waits for the kernel
/// before it on the stream, which must therefore not write it.
void linear_step(const LinearStepArgs& args, Stream stream);

}  // namespace cuda
}  // namespace adder
