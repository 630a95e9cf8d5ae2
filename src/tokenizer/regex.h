#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace adder::text {

/// What one thread needs to match patterns: result space, limits, stack, and a time budget.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  /// Allows 5 s and 4 µs per byte from now on. A pattern is thousands of times faster unless it
  /// backtracks without bound.
  void start_budget(std::size_t bytes);

 private:
  friend class Regex;
  struct Handles;
  std::unique_ptr<Handles> handles_;
  std::chrono::steady_clock::time_point deadline_;
  std::uint32_t calls_ = 0;
};

/// A compiled pattern of tokenizer.json. Immutable: many threads may search with it.
class Regex {
 public:
  /// `pattern` in Oniguruma's syntax; `context` begins the sentence of errors.
  Regex(std::string_view pattern, const std::string& context);

  /// A pattern that matches this text literally.
  static std::string quote(std::string_view text);

  enum class Status {
    match,      ///< found; no later text changes it
    none,       ///< nothing from here to the end
    undecided,  ///< more text might make, lengthen or prevent a match
  };
  struct Match {
    Status status;
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  /// The leftmost match in `subject` (well-formed UTF-8) at or after `from`. `final` says that the
  /// subject ends where the text does; otherwise a search that looks at the end is undecided.
  Match search(std::string_view subject, std::size_t from, bool final, RegexScratch& scratch) const;

  /// How many code points before `from` a search may look at.
  std::size_t lookbehind() const { return lookbehind_; }

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
  std::string pattern_;
  std::size_t lookbehind_ = 0;
};

}  // namespace adder::text
