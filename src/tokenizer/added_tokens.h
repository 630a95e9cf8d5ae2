#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/json_node.h"

namespace adder::text {

/// One entry of `added_tokens`: a string that becomes one token wherever it stands in the text.
struct AddedToken {
  int id = 0;
  std::string content;
  bool single_word = false;  ///< not inside a word
  bool lstrip = false;       ///< takes whitespace before it along
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< is looked for after normalization
  bool special = false;
};

/// Bounds the work per byte of text, for nothing but hostile files comes near.
inline constexpr std::size_t kMaxAddedTokenBytes = 1024;

std::vector<AddedToken> parse_added_tokens(const JsonNode& node);

/// Finds added tokens, the longest of those that start leftmost.
class AddedTokenMatcher {
 public:
  struct Entry {
    std::string text;  ///< what to look for: the content, normalized where the token says so
    AddedToken token;
  };

  AddedTokenMatcher();
  /// `text` must not be empty; of two equal ones the first stays.
  void add(const std::string& text, const AddedToken& token);

  bool empty() const { return entries_.empty(); }
  std::size_t max_bytes() const { return max_bytes_; }
  bool strips_left() const { return strips_left_; }

  /// The first position from `from` on where a token might start, or text.size().
  std::size_t next_candidate(std::string_view text, std::size_t from) const;
  /// The longest token that starts at `position`, or null.
  const Entry* longest_at(std::string_view text, std::size_t position) const;

 private:
  std::vector<Entry> entries_;
  FlatMap edges_;                       ///< (node << 8 | byte) -> node
  std::vector<std::int32_t> entry_at_;  ///< per node: the entry that ends there, or -1
  std::array<bool, 256> starts_{};      ///< first bytes
  std::size_t max_bytes_ = 0;
  bool strips_left_ = false;
};

/// Cuts a text that may arrive in portions at its added tokens.
class AddedTokenScanner {
 public:
  AddedTokenScanner(const AddedTokenMatcher& matcher, bool parse_special)
      : matcher_(&matcher), parse_special_(parse_special) {}

  /// Calls `on_text(std::string_view portion, bool ends_section)` for what stands between tokens
  /// and `on_token(int id)` for tokens, in order. Every section that was begun is ended.
  template <typename OnText, typename OnToken>
  void feed(std::string_view text, bool final, OnText&& on_text, OnToken&& on_token) {
    if (matcher_->empty()) return on_text(text, final);
    const bool direct = final && buffer_.empty();
    if (!direct) {
      buffer_ += text;
      if (!final && buffer_.size() < retry_at_) return;
      text = buffer_;
    }
    while (const auto found = next(text, final)) {
      if (section_open_ || found->begin > emitted_) {
        const std::size_t end = std::max(found->begin, emitted_);
        on_text(text.substr(emitted_, end - emitted_), true);
      }
      section_open_ = false;
      on_token(found->id);
      emitted_ = found->end;
    }
    const std::size_t decided = final ? text.size() : decided_text(text);
    if (decided > emitted_ || (final && section_open_)) {
      on_text(text.substr(emitted_, decided - emitted_), final);
      section_open_ = !final;
      emitted_ = decided;
    }
    if (final) {
      reset();
    } else {
      drop_used_text();
      // Looking again at much undecided text only when it has doubled keeps it linear.
      const std::size_t waiting = buffer_.size() - emitted_;
      retry_at_ = buffer_.size() + (waiting > 1024 ? waiting : 0);
    }
  }

 private:
  struct Found {
    std::size_t begin, end;
    int id;
  };
  std::optional<Found> next(std::string_view text, bool final);
  std::optional<Found> accept(std::string_view text, bool final, std::size_t begin,
                              const AddedTokenMatcher::Entry& entry);
  std::size_t decided_text(std::string_view text) const;
  void drop_used_text();
  void reset();

  const AddedTokenMatcher* matcher_;
  bool parse_special_;
  std::string buffer_;
  std::size_t position_ = 0;  ///< tokens that start before it are dealt with
  std::size_t emitted_ = 0;   ///< text before it was handed on
  std::size_t retry_at_ = 0;  ///< the buffer size from which looking again may help
  bool waiting_ = false;      ///< a token was found that later text may change
  bool section_open_ = false;
};

}  // namespace adder::text
