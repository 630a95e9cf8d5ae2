#pragma once

// The selective scan of Mamba-1. Per channel d of d_inner, with a state h_d of dstate numbers and
// the group g = d / (d_inner / ngroups):
//
//   dt_t = dt_raw_t + dt_bias, then softplus of it if dt_softplus     softplus(v) = ln(1 + e^v)
//   h_t  = exp(dt_td · A_d) ∘ h_{t-1} + dt_td · x_td · B_tg
//   y_td = C_tg · h_t + D_d · x_td, then · silu(z_td) if there is z
//
// Source: Gu and Dao, "Mamba" (2023), equation 2 with algorithm 2, A discretized by zero-order hold
// and B by Euler's rule, as the published code does.

#include <cstddef>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

inline constexpr std::int64_t kMaxScanStates = 256;

/// Arguments of selective_scan. The last dimension of every tensor is contiguous, the others have
/// free strides. nsequences is batch, or the number of sequences of `cu_seqlens`. Every tensor is
/// in the same memory: the host's, or that of one CUDA device. What is f32 in host memory may be
/// bf16 or f16 on a CUDA device where it says so.
struct SelectiveScanArgs {
  /// (batch, seqlen, d_inner) f32; on a CUDA device f32, bf16 or f16.
  ConstTensorView x;
  /// (batch, seqlen, d_inner), of the dtype of `x`, before bias and softplus.
  ConstTensorView dt;
  /// (d_inner, dstate) f32, negative; dstate 1 to 256.
  ConstTensorView A;
  /// (batch, seqlen, ngroups, dstate), of the dtype of `x`, ngroups dividing d_inner.
  ConstTensorView B;
  /// (batch, seqlen, ngroups, dstate), of the dtype of `x`.
  ConstTensorView C;
  /// (d_inner) f32, optional.
  ConstTensorView D{};
  /// (batch, seqlen, d_inner), of the dtype of `x`, optional.
  ConstTensorView z{};
  /// (d_inner) f32, optional.
  ConstTensorView dt_bias{};
  /// (nsequences, d_inner, dstate) f32, optional: the state before each sequence's first token.
  /// Absent: zeros.
  ConstTensorView initial_states{};
  /// (nsequences, d_inner, dstate) f32, optional: the state after each sequence's last token. May
  /// be `initial_states` itself.
  TensorView final_states{};
  /// (nsequences + 1) i32, optional, only with batch 1: sequence s has the tokens
  /// [cu_seqlens[s], cu_seqlens[s + 1]).
  ConstTensorView cu_seqlens{};
  /// (batch, seqlen) i32, optional: a negative entry marks a padding token, whose y is zero and
  /// which leaves the state alone; another value than that of the token before (padding skipped)
  /// resets the state to zeros. An initial state continues into the first run of a sequence.
  ConstTensorView seq_idx{};
  /// (batch, seqlen, d_inner), of the dtype of `x`. May be `x`, `dt` or `z` itself; otherwise it
  /// must not overlap the inputs.
  TensorView y;
  bool dt_softplus = true;
};

/// Throws adder::Error unless shapes, dtypes, layouts and offsets are as documented. Values of
/// offsets on a CUDA device are not looked at.
void validate(const SelectiveScanArgs& args);

namespace cpu {
/// States are float32 and live in registers; nothing of size (seqlen, d_inner, dstate) is stored.
/// A channel of a sequence gives the same bits whatever the number of threads, the other channels
/// and sequences, and the places where the sequence was cut into calls.
void selective_scan(const SelectiveScanArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Bytes of workspace for a call on the device of `args.x`; 0 if the sequences alone keep it busy.
std::size_t selective_scan_workspace_bytes(const SelectiveScanArgs& args);

/// Puts the work on the stream and returns; `workspace` is memory of the same device. Arithmetic is
/// float32 and nothing of size (seqlen, d_inner, dstate) is stored. Where there are few channels
/// for the device, every sequence is cut into segments that are scanned side by side: then the last
/// bits depend on their number, which depends on the extents of the tensors and on the device. They
/// never depend on other channels or sequences. Fastest where rows of x, dt, z and y start at
/// multiples of 16 bytes and a group has a multiple of 4 channels, the same of B and C with dstate,
/// and dstate is 8, 16 or a larger power of two. Offsets in cu_seqlens that decrease or do not end
/// at seqlen give meaningless results, but nothing outside of the tensors is read or written.
void selective_scan(const SelectiveScanArgs& args, std::span<std::byte> workspace, Stream stream);
}  // namespace cuda

}  // namespace adder
