#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"

namespace adder::text {
namespace {

// Words, with joiners inside them, or runs of neither words nor whitespace.
constexpr std::string_view kWordsPattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|)"
    R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";
// Unicode punctuation and all of ASCII's.
constexpr std::string_view kPunctuationPattern = R"([\p{P}$+<=>^`|~])";

/// Most files use this pattern: it is compiled once.
const Regex& byte_level_regex() {
  static const Regex regex(kGpt2Pattern, "tokenizer: a pattern");
  return regex;
}

SplitRule fixed_rule(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  return {Regex(pattern, "tokenizer: a pattern"), behavior, invert};
}

}  // namespace

std::string_view PreTokenizerStage::prepare(std::string_view text, bool begins, bool first,
                                            std::string& storage) const {
  if (text.empty()) return text;
  const bool replaces = !space_replacement.empty() && text.find(' ') != std::string_view::npos;
  const bool prefixes = begins && (prefix_scheme == PrefixScheme::always ||
                                   (prefix_scheme == PrefixScheme::first && first));
  if (!replaces && !(prefixes && !text.starts_with(prefix))) return text;
  std::string out;
  out.reserve(text.size() + prefix.size());
  for (const char c : text) {
    if (replaces && c == ' ') {
      out += space_replacement;
    } else {
      out += c;
    }
  }
  if (prefixes && !out.starts_with(prefix)) out.insert(0, prefix);
  storage = std::move(out);
  return storage;
}

SplitBehavior parse_split_behavior(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.error(
      "is '{}', expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
      name);
}

MetaspaceOptions::MetaspaceOptions(const JsonNode& node)
    : replacement(node.at("replacement").string()), split(node.boolean("split", true)) {
  if (replacement.empty() || code_point_at(replacement, 0).length != replacement.size()) {
    node.at("replacement").error("is '{}', expected one character", replacement);
  }
  if (const auto scheme_node = node.find("prepend_scheme")) {
    const std::string& name = scheme_node->string();
    if (name == "never") {
      scheme = PrefixScheme::never;
    } else if (name == "first") {
      scheme = PrefixScheme::first;
    } else if (name != "always") {
      scheme_node->error("is '{}', expected always, first or never", name);
    }
  } else if (!node.boolean("add_prefix_space", true)) {  // how older files say it
    scheme = PrefixScheme::never;
  }
}

PreTokenizer::PreTokenizer(const JsonNode& node) { add(node); }

std::size_t PreTokenizer::first_split() const {
  std::size_t i = 0;
  while (i < stages.size() && !stages[i].split) ++i;
  return i;
}

void PreTokenizer::add(const JsonNode& node) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    for (const JsonNode& stage : node.at("pretokenizers").elements()) add(stage);
    return;
  }
  PreTokenizerStage stage;
  if (type == "ByteLevel") {
    if (node.boolean("add_prefix_space", true)) {
      stage.prefix_scheme = PrefixScheme::always;
      stage.prefix = " ";
    }
    if (node.boolean("use_regex", true)) {
      stage.split = SplitRule{byte_level_regex(), SplitBehavior::isolated, false};
    }
    stage.to_byte_symbols = true;
  } else if (type == "Split") {
    const PatternText pattern(node);
    stage.split =
        SplitRule{Regex(pattern.regex, node.file() + ": " + node.path() + ".pattern"),
                  parse_split_behavior(node.at("behavior")), node.boolean("invert", false)};
  } else if (type == "Digits") {
    stage.split = fixed_rule(R"(\p{N})", node.boolean("individual_digits", false)
                                             ? SplitBehavior::isolated
                                             : SplitBehavior::contiguous);
  } else if (type == "Punctuation") {
    const auto behavior = node.find("behavior");
    stage.split = fixed_rule(kPunctuationPattern,
                             behavior ? parse_split_behavior(*behavior) : SplitBehavior::isolated);
  } else if (type == "Whitespace") {
    stage.split = fixed_rule(kWordsPattern, SplitBehavior::removed, /*invert=*/true);
  } else if (type == "WhitespaceSplit") {
    stage.split = fixed_rule(R"(\s)", SplitBehavior::removed);
  } else if (type == "Metaspace") {
    const MetaspaceOptions options(node);
    stage.space_replacement = options.replacement;
    stage.prefix = options.replacement;
    stage.prefix_scheme = options.scheme;
    if (options.split) {
      stage.split = fixed_rule(Regex::quote(options.replacement), SplitBehavior::merged_with_next);
    }
  } else {
    node.error(
        "is a pre-tokenizer of type '{}', expected ByteLevel, Split, Digits, Punctuation, "
        "Whitespace, WhitespaceSplit, Metaspace or Sequence",
        type);
  }
  stages.push_back(std::move(stage));
}

}  // namespace adder::text
