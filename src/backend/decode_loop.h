#pragma once

// Decoding that does not return to the host between tokens.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "adder/sampling.h"
#include "core/tensor.h"

namespace adder {

/// What one sequence asks of a loop.
struct DecodeRequest {
  SamplingParams sampling{};
  std::uint64_t seed = 0;
  std::uint64_t random_position = 0;  ///< how many random numbers of the seed were taken
  int repeat_window = 0;
  std::vector<int> recent;       ///< the last tokens, oldest first
  std::int64_t max_tokens = -1;  ///< negative: no limit; 0: the sequence does not take part
  bool stops = true;             ///< whether stop tokens end it
};

/// `failed`: the next token could not be sampled.
enum class DecodeEnd { running, max_tokens, stop_token, failed };

/// Steps of a fixed number of sequences, sampled on the device, one after another until each
/// sequence has ended. Belongs to one thread at a time.
///
/// A step feeds the tokens that were sampled last, so that what a sequence ends with has not been
/// fed: the last of `max_tokens`, or a stop token, which is not handed out either. The state of a
/// sequence that ends before others is not kept.
class DecodeLoop {
 public:
  virtual ~DecodeLoop() = default;

  /// Samples the first tokens from `logits` (sequences, at least vocab_size), f32 on the device,
  /// and sets off from the state as it is then. None of `stop_tokens` is handed out of a sequence
  /// that they end.
  virtual void start(const Tensor& logits, std::span<const DecodeRequest> requests,
                     std::span<const int> stop_tokens) = 0;

  /// Waits until token n of a sequence, counted from the start, is there, and gives it; or none, if
  /// the sequence ended before. Tokens are asked for in their order. Throws adder::Error if
  /// sampling failed (see sample_token).
  virtual std::optional<int> token(std::int64_t sequence, std::int64_t n) = 0;

  /// Why there is no token after those that were handed out.
  virtual DecodeEnd end(std::int64_t sequence) const = 0;

  /// Ends within a token, and waits for it. What was not handed out is lost, and so is the state.
  virtual void cancel() = 0;

  /// Whether the loop has ended, or paused, with everything that it sampled handed out. Then the
  /// state is that before the last token of each sequence (or after it, if a stop token came next),
  /// and what is put on the backend then may read it, until the next token is asked for.
  virtual bool settle() = 0;

  /// Whether the host is idle between tokens; otherwise it starts every step, as on drivers without
  /// graphs that repeat themselves.
  virtual bool runs_alone() const = 0;
};

}  // namespace adder
