#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  /// Room for `ntokens` tokens with `total_bytes` together and ids below `size`.
  Vocabulary(std::size_t ntokens, std::size_t total_bytes, int size);
  /// `node` is an object that maps strings to ids.
  explicit Vocabulary(const JsonNode& node);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  /// Adds one of the tokens that there is room for; false if the token or the id is taken.
  bool add(std::string_view token, int id);

  std::optional<int> find(std::string_view token) const;
  bool contains(int id) const {
    return id >= 0 && id < size() && tokens_[static_cast<std::size_t>(id)].data() != nullptr;
  }
  /// The token of an id that the vocabulary contains.
  std::string_view token(int id) const { return tokens_[static_cast<std::size_t>(id)]; }
  /// One more than the largest id.
  int size() const { return static_cast<int>(tokens_.size()); }

  /// How many ids are in use.
  std::size_t count() const { return count_; }

 private:
  /// A hash table with linear probing, half full at most: loading looks up every merge.
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;
  };
  std::size_t position_of(std::string_view token, std::uint32_t hash) const;

  std::vector<char> storage_;
  std::vector<std::string_view> tokens_;  ///< a null view where an id is not used
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace adder::text
