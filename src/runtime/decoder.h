#pragma once

// What a generation borrows from its model where the device decodes by itself.

#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "models/network.h"

namespace adder {

/// A loop of some sequences with the state that its steps update.
class Decoder {
 public:
  /// Null if the backend has no such loops. Throws adder::Error if there is no room for the states.
  static std::unique_ptr<Decoder> make(const Network& network, Backend& backend,
                                       std::int64_t capacity);

  /// The sequences that it has place for.
  std::int64_t capacity() const { return capacity_; }
  DecodeLoop& loop() { return *loop_; }
  NetworkState& state() { return state_; }
  /// (capacity, d_model): the final norm's output of the last step.
  const Tensor& hidden() const { return hidden_; }

 private:
  explicit Decoder(std::int64_t capacity)
      : capacity_(capacity), step_(Sequences::one_token_each(capacity)) {}

  const std::int64_t capacity_;
  const Sequences step_;
  NetworkState state_;
  Tensor hidden_;
  std::unique_ptr<DecodeLoop> loop_;
};

/// Decoders that are made once and used by one generation after another. Of those for one sequence
/// it keeps as many as ever ran at the same time; of larger ones, whose states are what memory is
/// full of, only such as have the size that was asked for last.
class DecoderPool {
 public:
  /// One with place for `nsequences` or a few more. Null if the backend has no loops.
  std::unique_ptr<Decoder> take(const Network& network, Backend& backend, std::int64_t nsequences);
  void give_back(std::unique_ptr<Decoder> decoder);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Decoder>> idle_;
  bool has_none_ = false;  ///< the backend makes no loops
};

}  // namespace adder
