#pragma once

// The state-space dual of Mamba-2 over whole sequences (prefill), with a state carried in and out.
// Per head h, with group g = h / (nheads / ngroups), state S (headdim, dstate) and S_0 the initial
// state:
//
//   dt_t = clamp(softplus(dt_t + dt_bias), dt_min, dt_max)              (softplus(v) = v above 20)
//   S_t  = exp(dt_t A) S_{t-1} + dt_t x_t B_tᵀ
//   y_t  = S_t C_t + D x_t
//   y_t  = y_t · silu(z_t)                                              (z present)
//
// computed in the chunked form: chunk_cumsum, fwd_pass_state and compute_out.
//
// Source: Dao and Gu, "Transformers are SSMs" (2024), section 6 and listing 1.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of ssd_forward. `nsequences` is batch, or the number of packed sequences. All tensors
/// are in the same memory: the host's, or that of one CUDA device.
struct SsdForwardArgs {
  /// (batch, seqlen, nheads, headdim) f32, bf16 or f16; rows contiguous, other strides free.
  ConstTensorView x;
  /// (batch, seqlen, nheads) f32, on a CUDA device also the dtype of x, any strides: the time step
  /// before bias and softplus.
  ConstTensorView dt;
  /// (nheads) f32, contiguous: finite and not positive.
  ConstTensorView A;
  /// (batch, seqlen, ngroups, dstate), dtype of x; rows contiguous; ngroups divides nheads.
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
  /// (nsequences, nheads, headdim, dstate) f32, optional; rows contiguous. Absent: zeros.
  ConstTensorView initial_states;
  /// (batch, seqlen) i32, optional. The state restarts from zero where the value differs from that
  /// of the last token that is not padding. Negative values mark padding: such a token does not
  /// touch the state, its inputs are not read, and its y is zero. The first other token continues
  /// the initial state.
  ConstTensorView seq_idx;
  /// (nsequences + 1) i32, optional, batch must be 1: the tokens of the row are packed sequences,
  /// each with its own initial and final state. A sequence may be empty: it ends as it began. Bad
  /// offsets on a CUDA device are clamped (see cuda::make_chunk_plan); a token that is then in no
  /// sequence gets a y of zero.
  ConstTensorView cu_seqlens;
  /// Tokens per chunk, at least 1. Changes results by rounding alone; an implementation may use
  /// chunks of another size.
  std::int64_t chunk_size = 256;
  /// Of f32 inputs: factors of products may be rounded to tf32 (11 digits) where that is faster,
  /// which it is on CUDA devices. Elsewhere, and of other inputs, it changes nothing.
  bool allow_tf32 = false;
  /// (batch, seqlen, nheads, headdim), dtype of x; rows contiguous. May be x or z itself.
  TensorView y;
  /// (nsequences, nheads, headdim, dstate) f32, optional; rows contiguous. May be the memory of
  /// initial_states. Where y or these take the place of an input, long sequences of few heads may
  /// take longer on a CUDA device.
  TensorView final_states;
};

/// Throws adder::Error unless shapes, dtypes, layouts and sequence bounds are as documented.
void validate(const SsdForwardArgs& args);

namespace cpu {
/// Bytes of workspace for a call with a pool of `nthreads`.
std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args, int nthreads);

/// Chunks of at most 64 tokens; states in float32, prefix sums in float64. Results do not depend on
/// the number of threads, other heads or other sequences, nor those of a token on later tokens.
void ssd_forward(const SsdForwardArgs& args, std::span<std::byte> workspace, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Ways to compute ssd_forward on a CUDA device.
enum class SsdForwardVariant : std::uint8_t {
  general,  ///< chunk_cumsum, fwd_pass_state and compute_out, window by window: takes every call
  /// Fused, for compute capability 9.0 and bf16 or f16: see hopper.cc for what it takes. It rounds
  /// the terms of states to the dtype of x once, so that final states of bf16 are right to 3e-3 of
  /// their norm; those of the other variant, and of f16, to 1e-3.
  /// Of tokens that a head has forgotten it does not read everything: an infinity or NaN there may
  /// not show in outputs and states far behind it.
  hopper,
};

std::string_view name_of(SsdForwardVariant variant);

/// How one call is carried out. Choices differ by rounding alone.
struct SsdForwardChoice {
  SsdForwardVariant variant = SsdForwardVariant::general;
  /// Of `general`: chunks whose states are kept at a time. All chunks are done window by window, so
  /// that the workspace does not grow with the number of tokens.
  std::int64_t window_chunks = 1;
  /// Of `hopper`: parts of each sequence that are computed at the same time. A pass before finds
  /// the end states of all but the last, where more than a few hundred tokens decide them.
  std::int64_t segments = 1;
  /// Of `hopper`: no such pass. Each segment begins with the tokens before it, as far back as
  /// anything is left of them, which may be all: one launch, for short sequences.
  bool warm_up = false;
  /// Of `hopper`, with one segment: as many blocks as the device has multiprocessors, each with an
  /// equal part of all sequences laid end to end, for many heads that would not come out even.
  bool end_to_end = false;

  friend bool operator==(const SsdForwardChoice&, const SsdForwardChoice&) = default;
};

struct SsdForwardDecision {
  SsdForwardChoice choice;
  /// Whether the choice was measured on such a device and is in the installed tuning table (see
  /// adder/tuning.h); else it is built in.
  bool tuned = false;
};

/// The choice for these arguments on their device: that of the installed tuning table if it has one
/// that the arguments allow, else the built-in one. Throws what `validate` throws.
SsdForwardDecision choose_ssd_forward(const SsdForwardArgs& args);

/// What choose_ssd_forward says without a tuning table.
SsdForwardChoice built_in_ssd_forward_choice(const SsdForwardArgs& args);

/// Bytes of device memory for a call with these arguments; with y or final_states in the place of
/// an input it may be another number. Without a choice, for a call that comes before another tuning
/// table is installed.
std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args);
std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args, const SsdForwardChoice& choice);

/// Puts the work on the stream and returns; without a choice, does it as choose_ssd_forward says.
/// Chunks of 64 tokens, whatever `chunk_size` is; states and sums in float32, prefix sums in
/// float64 (of `hopper`, in float32 from the beginning of each chunk), factors of products as
/// fwd_pass_state and compute_out document. Values of A, cu_seqlens and seq_idx are not looked at
/// on the host. Results do not depend on other rows or
/// heads, nor, of finite inputs, those of a token on later tokens.
void ssd_forward(const SsdForwardArgs& args, std::span<std::byte> workspace, Stream stream);
void ssd_forward(const SsdForwardArgs& args, const SsdForwardChoice& choice,
                 std::span<std::byte> workspace, Stream stream);
}  // namespace cuda

}  // namespace adder
