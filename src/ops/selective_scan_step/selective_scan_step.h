#pragma once

// One token of the selective scan of Mamba-1 for each of several sequences: decoding. Per channel d
// of d_inner with group g = d / (d_inner / ngroups):
//
//   dt  = dt_raw + dt_bias, then softplus of it if dt_softplus
//   h_d = exp(dt_d · A_d) ∘ h_d + dt_d · x_d · B_g
//   y_d = C_g · h_d + D_d · x_d, then · silu(z_d) if there is z
//
// See selective_scan for the source; a float32 state goes through the same bits in both.

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of selective_scan_step. The last dimension of every tensor is contiguous, the others
/// have free strides. Every tensor is in the same memory: the host's, or that of one CUDA device.
/// What is f32 in host memory may be bf16 or f16 on a CUDA device where it says so.
struct SelectiveScanStepArgs {
  /// (batch, d_inner) f32; on a CUDA device f32, bf16 or f16.
  ConstTensorView x;
  /// (batch, d_inner), of the dtype of `x`, before bias and softplus.
  ConstTensorView dt;
  /// (d_inner, dstate) f32, negative; dstate at least 1.
  ConstTensorView A;
  /// (batch, ngroups, dstate), of the dtype of `x`, ngroups dividing d_inner.
  ConstTensorView B;
  /// (batch, ngroups, dstate), of the dtype of `x`.
  ConstTensorView C;
  /// (d_inner) f32, optional.
  ConstTensorView D{};
  /// (batch, d_inner), of the dtype of `x`, optional.
  ConstTensorView z{};
  /// (d_inner) f32, optional.
  ConstTensorView dt_bias{};
  /// (batch, d_inner, dstate) f32, on a CUDA device also bf16, updated in place.
  TensorView state;
  /// (batch, d_inner), of the dtype of `x`. May be `x`, `dt` or `z` itself; otherwise it must not
  /// overlap the inputs.
  TensorView y;
  bool dt_softplus = true;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented.
void validate(const SelectiveScanStepArgs& args);

namespace cpu {
/// A channel of a sequence gives the same bits whatever the number of threads and whatever the
/// other channels and sequences.
void selective_scan_step(const SelectiveScanStepArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. A channel of a sequence gives the same bits whatever
/// the other sequences, with a float32 state also whatever the other channels. A bf16 state is
/// rounded when it is stored as in ssd_step. Fastest where dstate is a multiple of 4 and rows of A
/// and of the state start at multiples of 16 bytes.
void selective_scan_step(const SelectiveScanStepArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
