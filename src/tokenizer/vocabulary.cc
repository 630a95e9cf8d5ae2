#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace adder::text {
namespace {

std::uint32_t hash_of(std::string_view token) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>{}(token));
}

}  // namespace

Vocabulary::Vocabulary(std::size_t ntokens, std::size_t total_bytes, int size) {
  storage_.reserve(total_bytes + 1);  // an empty token has an address, too
  tokens_.resize(static_cast<std::size_t>(size));
  slots_.resize(std::bit_ceil(ntokens * 2 + 2));
}

Vocabulary::Vocabulary(const JsonNode& node) {
  node.expect_object();
  const Json::object_t& members = node.value().get_ref<const Json::object_t&>();
  std::size_t total_bytes = 0;
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
  *this = Vocabulary(members.size(), total_bytes, largest + 1);
  for (const auto& [token, id_value] : members) {
    const int id = id_value.get<int>();
    if (!add(token, id)) {
      node.error("gives id {} to both '{}' and '{}'", id, this->token(id), token);
    }
  }
}

bool Vocabulary::add(std::string_view token, int id) {
  const std::uint32_t hash = hash_of(token);
  Slot& slot = slots_[position_of(token, hash)];
  std::string_view& entry = tokens_[static_cast<std::size_t>(id)];
  if (slot.id >= 0 || entry.data() != nullptr) return false;
  // The reservation keeps earlier views valid.
  const std::size_t begin = storage_.size();
  storage_.insert(storage_.end(), token.begin(), token.end());
  entry = {storage_.data() + begin, token.size()};
  slot = {hash, id};
  ++count_;
  return true;
}

std::optional<int> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot = slots_[position_of(token, hash_of(token))];
  return slot.id < 0 ? std::nullopt : std::optional<int>(slot.id);
}

/// The slot that holds the token, or the free one where it belongs.
std::size_t Vocabulary::position_of(std::string_view token, std::uint32_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].id >= 0 && (slots_[i].hash != hash || this->token(slots_[i].id) != token)) {
    i = (i + 1) & mask;
  }
  return i;
}

}  // namespace adder::text
