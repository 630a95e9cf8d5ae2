#pragma once

// One token of the state-space dual of Mamba-2 for every sequence of a batch (decoding). Per head
// h, with group g = h / (nheads / ngroups) and state S (headdim, dstate), which is updated in
// place:
//
//   dt = clamp(softplus(dt + dt_bias), dt_min, dt_max)                  (softplus(v) = v above 20)
//   S  = exp(dt A) S + dt x Bᵀ
//   y  = S C + D x
//   y  = y · silu(z)                                                    (z present)
//
// Source: Dao and Gu, "Transformers are SSMs" (2024), equation 1 with scalar A.

#include <limits>

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// All tensors are in the same memory: the host's, or that of one CUDA device.
struct SsdStepArgs {
  /// (batch, nheads, headdim) f32, bf16 or f16; rows contiguous, other strides free.
  ConstTensorView x;
  /// (batch, nheads) f32, on a CUDA device also the dtype of x, any strides: the time step before
  /// bias and softplus.
  ConstTensorView dt;
  /// (nheads) f32, contiguous: finite and not positive.
  ConstTensorView A;
  /// (batch, ngroups, dstate), dtype of x; rows contiguous; ngroups divides nheads.
  ConstTensorView B;
  ConstTensorView C;
  /// (nheads) or (nheads, headdim) f32, contiguous, optional.
  ConstTensorView D;
  /// Like x, optional: the gate.
  ConstTensorView z;
  /// (nheads) f32, contiguous, optional.
  ConstTensorView dt_bias;
  bool dt_softplus = false;
  /// Limits of dt, 0 <= dt_min <= dt_max, applied after softplus.
  float dt_min = 0.0F;
  float dt_max = std::numeric_limits<float>::infinity();
  /// (batch, nheads, headdim, dstate) f32, on a CUDA device also bf16; rows contiguous. Read and
  /// written.
  TensorView state;
  /// Like x; may be x or z itself.
  TensorView y;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented.
void validate(const SsdStepArgs& args);

namespace cpu {
/// Reads and writes every element of the state once. Results do not depend on the number of threads
/// or on other heads or sequences.
void ssd_step(const SsdStepArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Float32 arithmetic, also for a bf16 state, of which y
/// is computed before it is stored: rounded to one of the two neighbours at random, so that the
/// mean is right, with random numbers that the state and the token decide (see
/// cuda/state_rounding.cuh). Reads and writes every element of the state once, fastest where its
/// rows start at multiples of 16 bytes and dstate is a multiple of 4. Values of A are not looked
/// at. Results do not depend on other heads or sequences.
void ssd_step(const SsdStepArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
