#include "tokenizer/vocabulary.h"

#include <algorithm>

namespace adder::text {

Vocabulary::Vocabulary(const JsonNode& node) {
  node.expect_object();
  const Json::object_t& members = node.value().get_ref<const Json::object_t&>();
  std::size_t total_bytes = 1;  // an empty token has an address, too
  int largest = -1;
  for (const auto& [token, id] : members) {
    total_bytes += token.size();
    const bool in_range = id.is_number_integer() && id >= 0 && id < kMaxTokens;
    if (!in_range) {
      node.error("maps '{}' to {}, expected an id from 0 to {}", token,
                 id.dump(-1, ' ', true).substr(0, 40), kMaxTokens - 1);
    }
    largest = std::max(largest, id.get<int>());
  }
  storage_.reserve(total_bytes);
  tokens_.resize(static_cast<std::size_t>(largest) + 1);
  ids_.reserve(members.size());
  for (const auto& [token, id_value] : members) {
    const int id = id_value.get<int>();
    std::string_view& slot = tokens_[static_cast<std::size_t>(id)];
    if (slot.data() != nullptr) node.error("gives id {} to both '{}' and '{}'", id, slot, token);
    // The reservation keeps earlier views valid.
    const std::size_t begin = storage_.size();
    storage_.insert(storage_.end(), token.begin(), token.end());
    slot = {storage_.data() + begin, token.size()};
    ids_.emplace(slot, id);
  }
}

}  // namespace adder::text
