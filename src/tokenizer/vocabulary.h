#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/json_node.h"

namespace adder::text {

/// Ids are below this: hundreds of times the largest vocabularies, and small enough that a table
/// indexed by them always fits in memory.
inline constexpr int kMaxTokens = 1 << 22;

/// The strings of a model's tokens, as the model spells them, by id and by content. Ids may have
/// holes.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// `node` is an object that maps strings to ids.
  explicit Vocabulary(const JsonNode& node);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::optional<int> find(std::string_view token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? std::nullopt : std::optional<int>(it->second);
  }
  bool contains(int id) const {
    return id >= 0 && id < size() && tokens_[static_cast<std::size_t>(id)].data() != nullptr;
  }
  /// The token of an id that the vocabulary contains.
  std::string_view token(int id) const { return tokens_[static_cast<std::size_t>(id)]; }
  /// One more than the largest id.
  int size() const { return static_cast<int>(tokens_.size()); }

  const std::unordered_map<std::string_view, int>& ids() const { return ids_; }

 private:
  std::vector<char> storage_;
  std::vector<std::string_view> tokens_;  ///< a null view where an id is not used
  std::unordered_map<std::string_view, int> ids_;
};

}  // namespace adder::text
