#pragma once

// The gate and the grouped root-mean-square norm at the end of a Mamba-2 mixer, in one pass.
//
//   norm_before_gate = false (default)   v = y · silu(z),   out = rms(v) · weight
//   norm_before_gate = true              out = rms(y) · weight · silu(z)
//   norm = false                         out = y · silu(z)
//
//   rms(v)_i = v_i / sqrt(mean over the group of i (v²) + epsilon)        silu(v) = v / (1 + e^-v)
//
// Each token's d_inner channels fall into `ngroups` groups of adjacent channels, and **each group
// is normalized by itself**: a norm over all of d_inner is another function once ngroups > 1.
//
// Source: Dao and Gu, "Transformers are SSMs" (2024), section 7.2 (the extra normalization) and 8.1
// (groups that match the groups of B and C).

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of gated_rms_norm. Rows are tokens, contiguous, with free strides between them. All
/// tensors are in the same memory: the host's, or that of one CUDA device.
struct GatedRmsNormArgs {
  /// (ntokens, d_inner) f32; on a CUDA device f32, bf16 or f16: what the state-space model
  /// returned.
  ConstTensorView y;
  /// (ntokens, d_inner), of the dtype of `y`, optional: the gate. Absent means no gate (then `norm`
  /// must be true).
  ConstTensorView z{};
  /// (d_inner) f32, optional: absent means all ones. Not allowed when `norm` is false.
  ConstTensorView weight{};
  /// (ntokens, d_inner), of the dtype of `y`. May be `y` or `z` itself; otherwise it must not
  /// overlap them.
  TensorView out;
  /// Divides d_inner.
  std::int64_t ngroups = 1;
  float epsilon = 1e-5F;
  bool norm_before_gate = false;
  bool norm = true;
};

/// Throws adder::Error unless shapes, dtypes, layouts and values are as documented.
void validate(const GatedRmsNormArgs& args);

namespace cpu {
/// Sums of squares are accumulated in float32, in an order that depends on the group size alone:
/// results do not depend on the number of threads, on the other groups or on the other rows.
void gated_rms_norm(const GatedRmsNormArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Sums of squares are accumulated in float32, in an order
/// that depends on the group size, the dtype and the alignment of rows alone. Fastest where every
/// group of every tensor starts at a multiple of 16 bytes and is a multiple of that long.
void gated_rms_norm(const GatedRmsNormArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
