#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace adder::text {
namespace {

// A token's neighbours are looked at to the length of one code point.
constexpr std::size_t kContextBytes = 4;

}  // namespace

std::vector<AddedToken> parse_added_tokens(const JsonNode& node) {
  std::vector<AddedToken> out;
  for (const JsonNode& element : node.elements()) {
    AddedToken token;
    token.id = static_cast<int>(element.at("id").integer(0, kMaxTokens - 1));
    token.content = element.at("content").string();
    token.single_word = element.boolean("single_word", false);
    token.lstrip = element.boolean("lstrip", false);
    token.rstrip = element.boolean("rstrip", false);
    token.special = element.boolean("special", false);
    token.normalized = element.boolean("normalized", !token.special);
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
      element.at("content").error("has {} bytes, expected 1 to {}", token.content.size(),
                                  kMaxAddedTokenBytes);
    }
    out.push_back(std::move(token));
  }
  return out;
}

AddedTokenMatcher::AddedTokenMatcher() : entry_at_(1, -1) {}

void AddedTokenMatcher::add(const std::string& text, const AddedToken& token) {
  std::uint64_t node = 0;
  for (const char c : text) {
    const std::uint64_t edge = (node << 8) | static_cast<unsigned char>(c);
    node = edges_.find(edge);
    if (node == FlatMap::kNone) {
      node = entry_at_.size();
      edges_.set(edge, node);
      entry_at_.push_back(-1);
    }
  }
  if (entry_at_[node] >= 0) return;
  entry_at_[node] = static_cast<std::int32_t>(entries_.size());
  entries_.push_back({text, token});
  starts_[static_cast<unsigned char>(text[0])] = true;
  max_bytes_ = std::max(max_bytes_, text.size());
  strips_left_ = strips_left_ || token.lstrip;
}

std::size_t AddedTokenMatcher::next_candidate(std::string_view text, std::size_t from) const {
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

const AddedTokenMatcher::Entry* AddedTokenMatcher::longest_at(std::string_view text,
                                                              std::size_t position) const {
  const Entry* longest = nullptr;
  std::uint64_t node = 0;
  for (std::size_t i = position; i < text.size(); ++i) {
    node = edges_.find((node << 8) | static_cast<unsigned char>(text[i]));
    if (node == FlatMap::kNone) break;
    if (entry_at_[node] >= 0) longest = &entries_[static_cast<std::size_t>(entry_at_[node])];
  }
  return longest;
}

std::optional<AddedTokenScanner::Found> AddedTokenScanner::next(std::string_view text, bool final) {
  waiting_ = false;
  while (true) {
    position_ = matcher_->next_candidate(text, position_);
    if (position_ >= text.size()) return std::nullopt;
    if (!final && text.size() - position_ < matcher_->max_bytes() + kContextBytes) {
      return std::nullopt;  // a longer token may start here, or what follows matters
    }
    const AddedTokenMatcher::Entry* entry = matcher_->longest_at(text, position_);
    if (entry == nullptr) {
      ++position_;
      continue;
    }
    const std::size_t begin = position_;
    if (auto found = accept(text, final, begin, *entry)) return found;
    if (waiting_) return std::nullopt;
  }
}

std::optional<AddedTokenScanner::Found> AddedTokenScanner::accept(
    std::string_view text, bool final, std::size_t begin, const AddedTokenMatcher::Entry& entry) {
  const AddedToken& token = entry.token;
  std::size_t end = begin + entry.text.size();
  const std::size_t after_match = end;
  if (token.special && !parse_special_) {
    position_ = after_match;
    return std::nullopt;
  }
  if (token.single_word) {
    const CodePoint before = code_point_before(text, begin);
    const bool word_after = end < text.size() && is_word(code_point_at(text, end).value);
    if ((begin > 0 && is_word(before.value)) || word_after) {
      position_ = after_match;
      return std::nullopt;
    }
  }
  if (token.lstrip) {
    const std::size_t least = std::min(begin, emitted_);
    while (begin > least) {
      const CodePoint c = code_point_before(text, begin);
      if (!is_whitespace(c.value) || c.length > begin - least) break;
      begin -= c.length;
    }
  }
  if (token.rstrip) {
    while (end < text.size() && is_whitespace(code_point_at(text, end).value)) {
      end += code_point_at(text, end).length;
    }
    // Whitespace may go on, or be cut in the middle of a character.
    if (!final && text.size() - end < kContextBytes) {
      waiting_ = true;
      return std::nullopt;
    }
  }
  position_ = after_match;
  return Found{begin, end, token.id};
}

std::size_t AddedTokenScanner::decided_text(std::string_view text) const {
  std::size_t end = position_;
  if (!matcher_->strips_left()) return end;
  // Whitespace belongs to the next token if that takes it along; so may the bytes of an incomplete
  // character.
  end -= incomplete_suffix(text.substr(0, end));
  while (end > emitted_) {
    const CodePoint c = code_point_before(text, end);
    if (!is_whitespace(c.value)) break;
    end -= c.length;
  }
  return end;
}

void AddedTokenScanner::drop_used_text() {
  // A token's word boundary looks at the character before it.
  const std::size_t used = std::min(position_, emitted_);
  const std::size_t dropped = used > kContextBytes ? used - kContextBytes : 0;
  buffer_.erase(0, dropped);
  position_ -= dropped;
  emitted_ -= dropped;
}

void AddedTokenScanner::reset() {
  buffer_.clear();
  position_ = 0;
  emitted_ = 0;
  retry_at_ = 0;
  waiting_ = false;
  section_open_ = false;
}

}  // namespace adder::text
