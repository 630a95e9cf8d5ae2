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

#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

inline constexpr std::int64_t kMaxScanStates = 256;

/// Arguments of selective_scan. The last dimension of every tensor is contiguous, the others have
/// free strides. nsequences is batch, or the number of sequences of `cu_seqlens`.
struct SelectiveScanArgs {
  /// (batch, seqlen, d_inner) f32.
  ConstTensorView x;
  /// (batch, seqlen, d_inner) f32, before bias and softplus.
  ConstTensorView dt;
  /// (d_inner, dstate) f32, negative; dstate 1 to 256.
  ConstTensorView A;
  /// (batch, seqlen, ngroups, dstate) f32, ngroups dividing d_inner.
  ConstTensorView B;
  /// (batch, seqlen, ngroups, dstate) f32.
  ConstTensorView C;
  /// (d_inner) f32, optional.
  ConstTensorView D{};
  /// (batch, seqlen, d_inner) f32, optional.
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
  /// (batch, seqlen, d_inner) f32. May be `x`, `dt` or `z` itself; otherwise it must not overlap
  /// the inputs.
  TensorView y;
  bool dt_softplus = true;
};

/// Throws adder::Error unless shapes, dtypes, layouts and offsets are as documented.
void validate(const SelectiveScanArgs& args);

namespace cpu {
/// States are float32 and live in registers; nothing of size (seqlen, d_inner, dstate) is stored.
/// A channel of a sequence gives the same bits whatever the number of threads, the other channels
/// and sequences, and the places where the sequence was cut into calls.
void selective_scan(const SelectiveScanArgs& args, ThreadPool& pool);
}  // namespace cpu

}  // namespace adder
