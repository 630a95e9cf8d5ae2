#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tokenizer/regex.h"

namespace adder::text {

/// What happens to the matches of a pattern that cuts text into pieces.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitRule {
  Regex regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  ///< the pattern describes what lies between the matches
};

/// Cuts one text, which may arrive in portions, by a rule. The pieces do not depend on the
/// portions: a piece is emitted once no later text can change it.
class Splitter {
 public:
  /// Handles `text`, which continues what earlier calls left in the buffer; `final` ends the text
  /// and makes the splitter ready for another. `emit(std::string_view piece)`.
  template <typename Emit>
  void feed(const SplitRule& rule, std::string_view text, bool final, RegexScratch& scratch,
            Emit&& emit) {
    if (final && buffer_.empty()) {  // all at once: no copy
      run(rule, text, true, scratch, emit);
      reset();
      return;
    }
    buffer_ += text;
    // Looking again at a long undecided piece only when it has doubled keeps it linear.
    if (!final && buffer_.size() < retry_at_) return;
    run(rule, buffer_, final, scratch, emit);
    if (final) {
      reset();
    } else {
      drop_used_text(rule);
      const std::size_t waiting = buffer_.size() - (has_piece_ ? piece_begin_ : gap_begin_);
      retry_at_ = buffer_.size() + (waiting > 1024 ? waiting : 0);
    }
  }

  /// Nothing is waiting.
  bool empty() const { return buffer_.empty(); }

 private:
  template <typename Emit>
  void run(const SplitRule& rule, std::string_view text, bool final, RegexScratch& scratch,
           Emit& emit) {
    while (true) {
      const Regex::Match match = next_match(rule.regex, text, final, scratch);
      if (match.status == Regex::Status::undecided) return;
      if (match.status == Regex::Status::none) break;
      if (match.begin > gap_begin_) entry(rule, text, gap_begin_, match.begin, rule.invert, emit);
      entry(rule, text, match.begin, match.end, !rule.invert, emit);
      gap_begin_ = match.end;
    }
    if (text.size() > gap_begin_) {
      entry(rule, text, gap_begin_, text.size(), rule.invert, emit);
    }
    flush(text, emit);
  }

  Regex::Match next_match(const Regex& regex, std::string_view text, bool final,
                          RegexScratch& scratch);

  /// The next stretch of text, which matches or does not: joined to the piece before it, or the
  /// start of a new one.
  template <typename Emit>
  void entry(const SplitRule& rule, std::string_view text, std::size_t begin, std::size_t end,
             bool matches, Emit& emit) {
    if (has_piece_ && joins(rule.behavior, matches)) {
      piece_end_ = end;
    } else {
      flush(text, emit);
      if (!(matches && rule.behavior == SplitBehavior::removed)) {
        has_piece_ = true;
        piece_begin_ = begin;
        piece_end_ = end;
      }
    }
    last_matches_ = matches;
    const bool never_joined =
        rule.behavior == SplitBehavior::isolated || rule.behavior == SplitBehavior::removed;
    if (never_joined) flush(text, emit);
  }

  bool joins(SplitBehavior behavior, bool matches) const;

  template <typename Emit>
  void flush(std::string_view text, Emit& emit) {
    if (has_piece_ && piece_end_ > piece_begin_) {
      emit(text.substr(piece_begin_, piece_end_ - piece_begin_));
    }
    has_piece_ = false;
  }

  void drop_used_text(const SplitRule& rule);
  void reset();

  std::string buffer_;
  std::size_t retry_at_ = 0;       ///< the buffer size from which looking again may help
  std::size_t search_from_ = 0;    ///< where the next search starts
  std::size_t gap_begin_ = 0;      ///< the end of the latest match
  std::size_t match_end_ = kNone;  ///< the same, if there was a match
  bool has_piece_ = false;         ///< a piece waits for what it may be joined with
  bool last_matches_ = false;
  std::size_t piece_begin_ = 0;
  std::size_t piece_end_ = 0;

  static constexpr std::size_t kNone = ~std::size_t{0};
};

}  // namespace adder::text
