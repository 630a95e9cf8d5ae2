#pragma once

// The second step of the chunked state-space dual: the state before every chunk.
//
//   S_first = initial state of the sequence (zero where the plan says that the state restarts)
//   S_{c+1} = 2^(s_last) S_c + Σ_j 2^(s_last − s_j) dt_j B_j x_jᵀ
//
// with j over the tokens of chunk c and s the prefix sum dA_cumsum of chunk_cumsum. All exponents
// are at most zero. In a chunk of several segments (see ChunkPlan) j runs over the last one alone,
// and S_c counts only if that is also the first.
//
// Source: Dao and Gu, "Transformers are SSMs" (2024), section 6, steps 2 and 3 of the block
// decomposition, done in one pass from chunk to chunk.

#include <cstddef>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/ops/chunk_cumsum/chunk_plan.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// States between chunks are kept transposed, (dstate, headdim), with headdim rounded up to this
/// many columns: both products with a state then run along its rows.
inline constexpr std::int64_t kStateColumns = 16;
constexpr std::int64_t padded_headdim(std::int64_t headdim) {
  return (headdim + kStateColumns - 1) / kStateColumns * kStateColumns;
}

/// All tensors and the plan are in the same memory: the host's, or that of one CUDA device.
struct FwdPassStateArgs {
  /// (batch, seqlen, nheads, headdim) f32, bf16 or f16; rows contiguous.
  ConstTensorView x;
  /// (batch, seqlen, ngroups, dstate), dtype of x; rows contiguous; ngroups divides nheads.
  ConstTensorView B;
  /// (nheads, nchunks, chunk_size) f32 and (nheads, nchunks, 2, chunk_size) f32, contiguous: from
  /// chunk_cumsum.
  ConstTensorView dt;
  ConstTensorView dA_cumsum;
  /// (nsequences, nheads, headdim, dstate) f32, optional; rows contiguous. Absent: zeros.
  ConstTensorView initial_states;
  /// Of f32 inputs: factors of products may be rounded to tf32 (11 digits) where that is faster,
  /// which it is on CUDA devices. Elsewhere, and of other inputs, it changes nothing.
  bool allow_tf32 = false;
  ChunkPlan plan;
  /// (nchunks, nheads, dstate, padded_headdim(headdim)) f32, contiguous: the state before each
  /// chunk, transposed, padded with zeros. That of a chunk that is not used is left alone.
  TensorView states;
  /// (nsequences, nheads, headdim, dstate) f32, optional; rows contiguous. May be the memory of
  /// initial_states. A sequence without chunks ends with its initial state.
  TensorView final_states;
};

/// Throws adder::Error unless shapes, dtypes, layouts and the plan are as documented.
void validate(const FwdPassStateArgs& args);

namespace cpu {
/// Bytes of workspace for a call with a pool of `nthreads`.
std::size_t fwd_pass_state_workspace_bytes(const FwdPassStateArgs& args, int nthreads);

/// Products are accumulated in float32, token by token inside a chunk.
void fwd_pass_state(const FwdPassStateArgs& args, std::span<std::byte> workspace, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. States and sums are float32. Tensor cores multiply: of
/// f32 inputs all digits of each factor, or 11 with allow_tf32; of 16-bit inputs x is taken as it
/// is and 2^(s_last − s_j) dt_j B_j rounded to 16 (bf16) or 11 (f16) digits. The 8 digits of bf16
/// would leave a state with an error of 1.7e-3, which the next call begins with. Magnitudes are at
/// most 3.38e38.
void fwd_pass_state(const FwdPassStateArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
