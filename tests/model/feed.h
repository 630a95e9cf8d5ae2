#pragma once

// Feeding tokens to models below and above the session, for tests of models.

#include <cstdint>
#include <vector>

#include "adder/model.h"
#include "runtime/model_impl.h"
#include "tests/support/random.h"

namespace adder::test {

using Rows = std::vector<std::vector<int>>;

// Of a prompt of `lengths`: what a network makes of it, tokens of all sequences one after another.
class Feed {
 public:
  explicit Feed(const Model& model) : Feed(model, *model.impl().backend) {}
  /// Computes with another backend than the model was loaded on, over the same memory.
  Feed(const Model& model, Backend& backend) : backend_(backend), network_(*model.impl().network) {}

  NetworkState new_state(std::int64_t nsequences) const {
    return network_.new_state(backend_, nsequences);
  }

  /// Logits (ntokens, padded vocabulary).
  std::vector<float> logits(const Rows& rows, NetworkState& state) const {
    std::vector<int> ids;
    std::vector<std::int32_t> offsets{0};
    for (const auto& row : rows) {
      ids.insert(ids.end(), row.begin(), row.end());
      offsets.push_back(static_cast<std::int32_t>(ids.size()));
    }
    const Tensor hidden =
        network_.forward(backend_, backend_.upload_ids(ids), Sequences(offsets), state);
    return values(network_.logits(backend_, hidden));
  }

  std::vector<float> values(const Tensor& tensor) const {
    std::vector<float> out(static_cast<std::size_t>(tensor.view.numel()));
    backend_.download(tensor, out);
    return out;
  }

 private:
  Backend& backend_;
  const Network& network_;
};

inline std::vector<int> random_ids(const Model& model, std::int64_t count, std::uint64_t stream) {
  Random random(stream);
  std::vector<int> out(static_cast<std::size_t>(count));
  for (int& id : out) id = static_cast<int>(random.integer(0, model.config().vocab_size - 1));
  return out;
}

/// The most likely tokens, whether they end the text or not.
inline std::vector<int> greedy(Session& session, std::int64_t count) {
  std::vector<int> out;
  for (int token : session.generate(
           {.max_tokens = count, .sampling = {.temperature = 0}, .stop_at_eos = false})) {
    out.push_back(token);
  }
  return out;
}

}  // namespace adder::test
