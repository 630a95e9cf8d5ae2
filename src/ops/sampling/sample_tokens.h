#pragma once

// From logits to tokens for many sequences, all of it on a device: what a decode loop needs that
// does not return to the host between tokens. For the same logits, parameters, recent tokens and
// place in the random numbers, the token is the one that sample_token gives (see sampling.h for the
// steps and the sources of their formulas), on every device.

#include <cstddef>
#include <cstdint>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/sampling.h"
#include "adder/tensor_view.h"

namespace adder {

/// How one sequence is sampled, as it lies in device memory.
struct SequenceSampling {
  SamplingParams params;
  /// How many of the recent tokens `params.repeat_penalty` applies to, at most; not negative.
  std::int32_t repeat_window = 0;
  /// Of the random numbers.
  std::uint64_t seed = 0;
};
static_assert(sizeof(SequenceSampling) == 32);

/// Why a sequence has no token.
enum class SampleError : std::int32_t {
  none,
  not_a_number,    ///< the logit of token `detail` is NaN
  infinite,        ///< the logit of token `detail` is +inf, perhaps once it is penalized
  all_ruled_out,   ///< all logits are -inf
  recent_token,    ///< token `detail` among the recent ones is not below vocab_size
  invalid_params,  ///< `validate` refuses the parameters, or repeat_window is negative
};

/// A row of SampleTokensArgs::status.
struct SampleStatus {
  SampleError error = SampleError::none;
  std::int32_t detail = 0;
};

/// Arguments of sample_tokens, all in memory of one device. A sequence that is not active, or whose
/// status is not zero, is left alone: nothing of it is written.
struct SampleTokensArgs {
  /// (batch, vocab_size) f32, rows contiguous; of a padded head, the columns that are tokens.
  ConstTensorView logits;
  /// (batch, sizeof(SequenceSampling)) u8, contiguous, at a multiple of 8 bytes: a SequenceSampling
  /// for each sequence.
  ConstTensorView sampling;
  /// (batch) i64, contiguous: how many random numbers were taken, as an unsigned number (see
  /// Rng::position). One more after a draw; greedy sampling takes none.
  TensorView position;
  /// (batch, capacity) i32, contiguous, optional: the last tokens of each sequence, a ring. Token
  /// number n is at n mod capacity; the token that is sampled is appended. Absent: no token is
  /// recent.
  TensorView recent;
  /// (batch) i64, contiguous, with `recent`: how many tokens there were so far, not negative; more
  /// than `capacity` once old ones were overwritten. One more after a token.
  TensorView recent_count;
  /// (batch) u8, contiguous, optional: 0 where a sequence is not active. Absent: all are.
  ConstTensorView active;
  /// (batch) i32, contiguous: the token of each sequence. Keeps its value where a sequence is left
  /// alone and where an error is found, so that it remains the id of a token.
  TensorView tokens;
  /// (batch, 2) i32, contiguous: a SampleStatus for each sequence, none to begin with. Set where a
  /// sequence cannot be sampled; then nothing else of that sequence is written, nor is it sampled
  /// by later calls, so that the first error is still there when the host looks.
  TensorView status;
};

/// Sizes beyond which sample_tokens refuses a call.
inline constexpr std::int64_t kMaxSampledVocabSize = std::int64_t{1} << 18;
inline constexpr std::int64_t kMaxRecentCapacity = 256;

/// Throws adder::Error unless shapes, dtypes and layouts are as documented, vocab_size is 1 to
/// kMaxSampledVocabSize and the capacity of `recent` 1 to kMaxRecentCapacity.
void validate(const SampleTokensArgs& args);

/// Throws, unless `status` is none, the adder::Error that sample_token would have thrown for these
/// parameters.
void check_sampled(const SampleStatus& status, const SequenceSampling& sampling,
                   std::int64_t vocab_size);

namespace cuda {
/// Bytes of device memory for a call of this size.
std::size_t sample_tokens_workspace_bytes(std::int64_t batch, std::int64_t vocab_size);

/// Puts the work, one launch, on the stream and returns. The workspace is zeros before the first
/// call; each call of the same size can use it as the one before left it. Calls that may run at the
/// same time need one each. What becomes of a sequence does not depend on the others.
/// Fastest where rows of logits start at multiples of 16 bytes, and, of draws, where top_k is 1 to
/// 512, not above vocab_size / 128, and few logits are equal to the last one kept.
void sample_tokens(const SampleTokensArgs& args, std::span<std::byte> workspace, Stream stream);
}  // namespace cuda

}  // namespace adder
