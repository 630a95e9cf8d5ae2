#pragma once

// What a generation borrows from its model where the device decodes by itself.

#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "models/network.h"

namespace adder {

/// A loop of one sequence with the state that its steps update.
class Decoder {
 public:
  /// Null if the backend has no such loops.
  static std::unique_ptr<Decoder> make(const Network& network, Backend& backend);

  DecodeLoop& loop() { return *loop_; }
  NetworkState& state() { return state_; }
  /// (1, d_model): the final norm's output of the last step.
  const Tensor& hidden() const { return hidden_; }

 private:
  Decoder() = default;

  NetworkState state_;
  Tensor hidden_;
  std::unique_ptr<DecodeLoop> loop_;
};

/// Decoders that are made once and used by one generation after another, as many as ever ran at the
/// same time.
class DecoderPool {
 public:
  /// Null if the backend has no loops.
  std::unique_ptr<Decoder> take(const Network& network, Backend& backend);
  void give_back(std::unique_ptr<Decoder> decoder);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Decoder>> idle_;
  bool has_none_ = false;  ///< the backend makes no loops
};

}  // namespace adder
