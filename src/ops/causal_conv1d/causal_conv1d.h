#pragma once

// Depthwise causal convolution along the tokens of each sequence, with optional bias and SiLU.
//
//   u_tc = bias_c + Σ_{k < width} weight_ck · x_{t - (width - 1) + k, c}
//   y_tc = u_tc, or silu(u_tc) = u_tc / (1 + e^-u_tc)
//
// Inputs before the first token of a sequence come from `conv_state`; without one they are zero.
//
// Source: Gu and Dao, "Mamba" (2023), section 3.4; the state is that of its recurrent form.

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

inline constexpr std::int64_t kMinConvWidth = 2;
inline constexpr std::int64_t kMaxConvWidth = 8;

/// Arguments of causal_conv1d. The tokens of all sequences lie one after another. The elements of a
/// token's row are contiguous; the stride between rows is free. All tensors are in the same memory:
/// the host's, or that of one CUDA device.
struct CausalConv1dArgs {
  /// (ntokens, channels) f32; on a CUDA device f32, bf16 or f16.
  ConstTensorView x;
  /// (channels, width) f32, any strides, width 2 to 8. Fastest when the channels of one tap are
  /// contiguous (stride 1 in dimension 0), that is when memory holds (width, channels).
  ConstTensorView weight;
  /// (channels) f32, optional, contiguous.
  ConstTensorView bias{};
  /// (ntokens, channels), of the dtype of `x`. Must not overlap `x`.
  TensorView y;
  /// (nsequences, width - 1, channels) f32, optional, rows contiguous, read and written: the last
  /// width - 1 inputs (`x`, not `y`) before each sequence's first token, oldest first, zeros for a
  /// new sequence; on return those before the token that would come next. A sequence may be shorter
  /// than the window, or empty.
  TensorView conv_state{};
  /// (nsequences + 1) i32, optional: sequence s has the tokens [cu_seqlens[s], cu_seqlens[s + 1]).
  /// Absent: all tokens are one sequence.
  ConstTensorView cu_seqlens{};
  /// (ntokens) i32, optional, contiguous: a negative entry marks a padding token, whose y is zero
  /// and which is no part of the history; another value than that of the token before (padding
  /// skipped) resets the history to zeros. `conv_state` continues into the first run of a sequence.
  ConstTensorView seq_idx{};
  bool silu = true;
};

/// Throws adder::Error unless shapes, dtypes, layouts and offsets are as documented. Values of
/// offsets on a CUDA device are not looked at.
void validate(const CausalConv1dArgs& args);

namespace cpu {
/// An element of y depends on its own window alone, bit for bit: not on the number of threads, on
/// other tokens or channels, or on where a sequence was cut into calls.
void causal_conv1d(const CausalConv1dArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Sums are accumulated in float32; an element of y
/// depends on its own window alone, bit for bit. Fastest where rows of x, y and conv_state start at
/// multiples of 16 bytes, channels are a multiple of 8, and the width is 2 to 4. Offsets in
/// cu_seqlens that decrease or do not end at ntokens give meaningless results, but nothing outside
/// the tensors is read or written.
void causal_conv1d(const CausalConv1dArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
