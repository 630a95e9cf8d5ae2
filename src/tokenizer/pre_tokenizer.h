#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_node.h"
#include "tokenizer/splitter.h"

namespace adder::text {

/// The pattern of GPT-2's paper code, which ByteLevel stands for.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// When a text gets a prefix that it does not start with yet.
enum class PrefixScheme {
  never,
  always,  ///< every piece that reaches the stage
  first,   ///< only the piece that the whole text starts with
};

/// One step of cutting text into words, each part optional, in this order.
struct PreTokenizerStage {
  std::string space_replacement;  ///< empty: spaces stay
  PrefixScheme prefix_scheme = PrefixScheme::never;
  std::string prefix;
  std::optional<SplitRule> split;
  bool to_byte_symbols = false;

  /// Everything before the split. `begins` says that this is the beginning of a piece and not a
  /// later portion of one, `first` that the whole text starts there. Returns `text` itself or a
  /// view of `storage`.
  std::string_view prepare(std::string_view text, bool begins, bool first,
                           std::string& storage) const;
};

/// The `pre_tokenizer` of tokenizer.json, with sequences laid out flat. Each stage works on every
/// piece that the one before it has made.
struct PreTokenizer {
  std::vector<PreTokenizerStage> stages;

  PreTokenizer() = default;
  explicit PreTokenizer(const JsonNode& node);

  /// The first stage that cuts; stages.size() if none does.
  std::size_t first_split() const;

 private:
  void add(const JsonNode& node);
};

/// `behavior` of a Split or Punctuation component.
SplitBehavior parse_split_behavior(const JsonNode& node);

/// Metaspace as pre-tokenizer and decoder: the character and when it is put in front.
struct MetaspaceOptions {
  std::string replacement;
  PrefixScheme scheme = PrefixScheme::always;
  bool split = true;
  explicit MetaspaceOptions(const JsonNode& node);
};

}  // namespace adder::text
