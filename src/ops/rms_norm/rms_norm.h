#pragma once

// Root-mean-square normalization of the residual stream, with the residual addition fused in.
//
//   r_t = residual_t + x_t                        (x absent: r_t = residual_t)
//   y_t = r_t / sqrt(mean_i(r_ti²) + epsilon) · weight
//
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4; the fused
// addition is the pre-norm residual block of Mamba (Gu and Dao 2023, section 3.4).

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of rms_norm. Rows are tokens; every tensor is in the same memory: the host's, or that
/// of one CUDA device. What is f32 in host memory may be bf16 or f16 on a CUDA device where it says
/// so.
struct RmsNormArgs {
  /// (ntokens, d_model) f32; on a CUDA device, without `x`, also of the dtype of `y`. Read; with
  /// `x` present also written: it becomes residual + x.
  TensorView residual;
  /// (ntokens, d_model), of the dtype of `y`, optional: what is added to the residual stream first.
  ConstTensorView x;
  /// (d_model) f32, optional: absent means all ones.
  ConstTensorView weight;
  /// (ntokens, d_model) f32; on a CUDA device f32, bf16 or f16. May be `x` itself; must not overlap
  /// `residual` unless `x` is absent and it is `residual` itself.
  TensorView y;
  float epsilon = 1e-5F;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented (rows contiguous).
void validate(const RmsNormArgs& args);

namespace cpu {
/// Sums of squares are accumulated in float32, in an order that depends on d_model alone: results
/// do not depend on the number of threads or on the other rows.
void rms_norm(const RmsNormArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Sums of squares are accumulated in float32, in an order
/// that depends on d_model, the dtypes and the alignment of rows alone. Fastest where all rows
/// start at multiples of 16 bytes and are multiples of that long.
void rms_norm(const RmsNormArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
