#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_node.h"
#include "tokenizer/regex.h"

namespace adder::text {

enum class NormalizationForm { nfc, nfd, nfkc, nfkd };

/// Well-formed text in a Unicode normalization form. What is already in form costs a scan.
std::string normalize(std::string_view text, NormalizationForm form);

/// The `normalizer` of tokenizer.json: what happens to text before added tokens of the normalized
/// kind and the pre-tokenizer see it. Text between two added tokens (a section) is normalized as a
/// whole; a section that arrives in portions gives the same result.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(const JsonNode& node);

  bool empty() const { return steps_.empty(); }

  /// A whole section, or a portion that ends before a `safe_cut`. `begins_section` is for
  /// normalizers that act there. Returns `text` itself or a view of `storage`.
  std::string_view apply(std::string_view text, bool begins_section, RegexScratch& scratch,
                         std::string& storage) const;

  /// The largest position at which the normalized text of both sides joins to that of the whole,
  /// whatever follows the text; 0 if none is known.
  std::size_t safe_cut(std::string_view text) const;

 private:
  struct Lowercase {};
  struct Strip {
    bool left, right;
  };
  struct Replace {
    Regex pattern;
    std::string literal;  ///< the pattern, if it is plain text
    std::string content;
  };
  struct Prepend {
    std::string text;
  };
  using Step = std::variant<NormalizationForm, Lowercase, Strip, Replace, Prepend>;

  void add(const JsonNode& node);
  void add_replace(const JsonNode& node);
  static void run(const NormalizationForm& form, std::string& text, RegexScratch& scratch);
  static void run(const Lowercase& step, std::string& text, RegexScratch& scratch);
  static void run(const Strip& step, std::string& text, RegexScratch& scratch);
  static void run(const Replace& step, std::string& text, RegexScratch& scratch);
  static void run(const Prepend& step, std::string& text, RegexScratch& scratch);

  std::vector<Step> steps_;
  bool composes_ = false;            ///< there is a normalization form among the steps
  bool sees_whole_section_ = false;  ///< a step that cannot work on portions
};

/// Replaces every match of a pattern: shared by the normalizer and the decoder of that name.
std::string replace_matches(const Regex& pattern, std::string_view text, std::string_view content,
                            RegexScratch& scratch);

/// The `pattern` member of a component: {"String": ...} or {"Regex": ...}.
struct PatternText {
  std::string literal;  ///< empty for a regular expression
  std::string regex;    ///< in either case
  explicit PatternText(const JsonNode& component);
};

}  // namespace adder::text
