#pragma once

// The third step of the chunked state-space dual: outputs from the state before each chunk and the
// tokens of the chunk.
//
//   y_i = 2^(s_i) S_cᵀ C_i  +  Σ_{j <= i} (C_i · B_j) 2^(s_i − s_j) dt_j x_j  +  D x_i
//   y_i = y_i · silu(z_i)                                                          (z present)
//
// with s the prefix sum dA_cumsum of chunk_cumsum and S_c the state of fwd_pass_state. All
// exponents are at most zero, and what lies above the diagonal is never computed with. In a chunk
// of several segments (see ChunkPlan) j runs over the segment of i, and S_c counts in the first.
//
// Source: Dao and Gu, "Transformers are SSMs" (2024), section 6, steps 1 and 4.

#include <cstddef>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/ops/chunk_cumsum/chunk_plan.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// All tensors and the plan are in the same memory: the host's, or that of one CUDA device.
struct ComputeOutArgs {
  /// (batch, seqlen, nheads, headdim) f32, bf16 or f16; rows contiguous.
  ConstTensorView x;
  /// (batch, seqlen, ngroups, dstate), dtype of x; rows contiguous; ngroups divides nheads.
  ConstTensorView B;
  ConstTensorView C;
  /// (nheads, nchunks, chunk_size) f32 and (nheads, nchunks, 2, chunk_size) f32, contiguous: from
  /// chunk_cumsum.
  ConstTensorView dt;
  ConstTensorView dA_cumsum;
  /// (nchunks, nheads, dstate, padded_headdim(headdim)) f32, contiguous: from fwd_pass_state.
  ConstTensorView states;
  /// (nheads) or (nheads, headdim) f32, contiguous, optional.
  ConstTensorView D;
  /// Like x, optional.
  ConstTensorView z;
  /// Of f32 inputs: factors of products may be rounded to tf32 (11 digits) where that is faster,
  /// which it is on CUDA devices. Elsewhere, and of other inputs, it changes nothing.
  bool allow_tf32 = false;
  ChunkPlan plan;
  /// Like x; may be x or z itself. Tokens that are in no chunk (padding) get zero.
  TensorView y;
};

/// Throws adder::Error unless shapes, dtypes, layouts and the plan are as documented.
void validate(const ComputeOutArgs& args);

namespace cpu {
/// Bytes of workspace for a call with a pool of `nthreads`.
std::size_t compute_out_workspace_bytes(const ComputeOutArgs& args, int nthreads);

/// Products are accumulated in float32: first over dstate, then over the tokens of the chunk in
/// order, so that a token's result does not depend on any later token.
void compute_out(const ComputeOutArgs& args, std::span<std::byte> workspace, ThreadPool& pool);

/// Writes zeros to the tokens of `y` (batch, seqlen, nheads, headdim) that are in no chunk.
void zero_padding(const ChunkPlan& plan, const TensorView& y, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Sums are float32. Tensor cores multiply: of f32 inputs
/// all digits of each factor, or 11 with allow_tf32; of 16-bit inputs x, B and C are taken as they
/// are and the states S_c and the weights (C_i · B_j) 2^(s_i − s_j) dt_j rounded to as many digits
/// as the dtype has. Magnitudes are at most 3.38e38. Of finite inputs, a token's result does not
/// depend on any later token.
void compute_out(const ComputeOutArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
