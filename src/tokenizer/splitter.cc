#include "tokenizer/splitter.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace adder::text {

Regex::Match Splitter::next_match(const Regex& regex, std::string_view text, bool final,
                                  RegexScratch& scratch) {
  while (true) {
    if (search_from_ > text.size()) return {Regex::Status::none};
    const Regex::Match match = regex.search(text, search_from_, final, scratch);
    if (match.status != Regex::Status::match) return match;
    const bool empty = match.begin == match.end;
    // Whether an empty match at the end of what has arrived is one depends on what follows.
    if (empty && match.end == text.size() && !final) return {Regex::Status::undecided};
    search_from_ = match.end;
    if (empty) {
      search_from_ += match.end < text.size() ? code_point_at(text, match.end).length : 1;
      // No empty match right after another one; nor before text that was already used (\K).
      if (match.end == match_end_ || match.begin < gap_begin_) continue;
    }
    match_end_ = match.end;
    return {Regex::Status::match, std::max(match.begin, gap_begin_), match.end};
  }
}

bool Splitter::joins(SplitBehavior behavior, bool matches) const {
  switch (behavior) {
    case SplitBehavior::isolated:
    case SplitBehavior::removed:
      return false;
    case SplitBehavior::contiguous:
      return matches == last_matches_;
    case SplitBehavior::merged_with_previous:
      return matches && !last_matches_;
    case SplitBehavior::merged_with_next:
      return !matches && last_matches_;
  }
  return false;
}

void Splitter::drop_used_text(const SplitRule& rule) {
  std::size_t begin = std::min(gap_begin_, search_from_);
  if (has_piece_) begin = std::min(begin, piece_begin_);
  for (std::size_t i = 0; i < rule.regex.lookbehind() && begin > 0; ++i) {
    begin -= code_point_before(buffer_, begin).length;
  }
  buffer_.erase(0, begin);
  search_from_ -= begin;
  gap_begin_ -= begin;
  if (match_end_ != kNone) match_end_ = match_end_ >= begin ? match_end_ - begin : kNone;
  piece_begin_ -= std::min(begin, piece_begin_);
  piece_end_ -= std::min(begin, piece_end_);
}

void Splitter::reset() {
  buffer_.clear();
  retry_at_ = 0;
  search_from_ = 0;
  gap_begin_ = 0;
  match_end_ = kNone;
  has_piece_ = false;
  last_matches_ = false;
}

}  // namespace adder::text
