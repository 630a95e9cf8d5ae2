// The parts that have a definition of their own.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "adder/error.h"
#include "tests/support/random.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/oniguruma.h"
#include "tokenizer/splitter.h"
#include "tokenizer/unicode.h"

namespace adder::text {
namespace {

TEST(Unicode, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string s;
    append_utf8(s, c);
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    const CodePoint read = code_point_at(s, 0);
    ASSERT_EQ(read.value, surrogate ? kInvalid : c);
    if (surrogate) continue;
    ASSERT_EQ(read.length, s.size());
    ASSERT_EQ(code_point_before(s, s.size()).value, c);
    for (std::size_t n = 1; n < s.size(); ++n) ASSERT_EQ(incomplete_suffix(s.substr(0, n)), n);
  }
}

TEST(Unicode, IllFormedBytes) {
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x28\xa1"}) {
    EXPECT_EQ(valid_prefix(bad), 0u);
  }
  EXPECT_EQ(valid_prefix("abcdefghijk\xff"), 11u);
  EXPECT_EQ(incomplete_suffix("a\xe2\x28"), 0u);
  EXPECT_EQ(incomplete_suffix("a\xc3\xa9"), 0u);
}

TEST(Unicode, ByteSymbolsAreAPermutation) {
  std::string all;
  for (int b = 0; b < 256; ++b) {
    const char32_t symbol = byte_to_symbol(static_cast<unsigned char>(b));
    EXPECT_EQ(symbol_to_byte(symbol), b);
    all += static_cast<char>(b);
  }
  std::string symbols;
  append_byte_symbols(symbols, all);
  EXPECT_EQ(valid_prefix(symbols), symbols.size());
  EXPECT_EQ(symbol_to_byte(0x144), -1);
  EXPECT_EQ(symbol_to_byte(' '), -1);
}

TEST(Normalizer, BlocksJoinToTheWhole) {
  // Normalizing in one block is the definition; the quick path must not be seen.
  test::Random random;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (int n = 0; n < 12; ++n) {
      const int low[] = {0x20, 0xc0, 0x300, 0x1100, 0xac00, 0x3040, 0x900, 0x2000, 0x1e00, 0xf900};
      append_utf8(text, static_cast<char32_t>(low[random.integer(0, 9)] + random.integer(0, 0x70)));
    }
    for (const auto form : {NormalizationForm::nfc, NormalizationForm::nfd, NormalizationForm::nfkc,
                            NormalizationForm::nfkd}) {
      const std::string whole = normalize(text, form);
      ASSERT_EQ(normalize(whole, form), whole);
      for (std::size_t cut = 0; cut < text.size();) {
        const CodePoint c = code_point_at(text, cut);
        if (starts_normalization_block(c.value)) {
          ASSERT_EQ(normalize(text.substr(0, cut), form) + normalize(text.substr(cut), form),
                    whole);
        }
        cut += c.length;
      }
    }
  }
  EXPECT_EQ(normalize("e\xcc\x81", NormalizationForm::nfc), "\xc3\xa9");
  EXPECT_EQ(normalize("\xc3\xa9", NormalizationForm::nfd), "e\xcc\x81");
  EXPECT_EQ(normalize("\xef\xac\x81", NormalizationForm::nfkc), "fi");
  EXPECT_EQ(normalize("\xef\xac\x81", NormalizationForm::nfc), "\xef\xac\x81");
}

TEST(Oniguruma, Translation) {
  const auto translate = [](std::string_view p) { return oniguruma_to_pcre2(p, "p"); };
  EXPECT_EQ(translate(R"(\s+(?!\S)|[^\s\p{L}]+)"),
            R"(\p{White_Space}+(?!\P{White_Space})|[^\p{White_Space}\p{L}]+)");
  EXPECT_EQ(translate(R"(\p{N}{1,3}+)"), R"((?:\p{N}{1,3})+)");
  EXPECT_EQ(translate(R"((ab){,2}+c)"), R"((?:(ab){0,2})+c)");
  EXPECT_EQ(translate(R"((?m:.)\u00e9\h)"), R"((?s:.)\x{00e9}[0-9a-fA-F])");
  EXPECT_EQ(translate(R"(\p{Han}\p{^Lu})"), R"(\p{sc:Han}\p{^Lu})");
  for (const char* bad : {"[a[b]]", "[[:alpha:]]", "[a&&b]", "a)", "[a", "\\", "(?x)a", "(*FAIL)",
                          "\\u12", "[\\W]", "\\R"}) {
    EXPECT_THROW(translate(bad), Error) << bad;
  }
}

TEST(Regex, UnboundedBacktrackingIsAnError) {
  const std::string text = std::string(60, 'a') + "d";
  RegexScratch scratch;
  scratch.start_budget(text.size());
  EXPECT_THROW(Regex("(a|aa)+[bc]", "p").search(text, 0, true, scratch), Error);
  EXPECT_THROW(Regex("(", "p"), Error);
}

TEST(Regex, LongMatchesGetTheStackTheyNeed) {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += "ab";
  RegexScratch scratch;
  const Regex regex("(?:a|b)*c", "p");
  EXPECT_EQ(regex.search(text + "c", 0, true, scratch).end, text.size() + 1);
}

std::vector<std::string> split(const std::string& pattern, SplitBehavior behavior,
                               const std::string& text) {
  const SplitRule rule{Regex(pattern, "p"), behavior, false};
  Splitter splitter;
  RegexScratch scratch;
  std::vector<std::string> pieces;
  splitter.feed(rule, text, true, scratch, [&](std::string_view p) { pieces.emplace_back(p); });
  return pieces;
}

TEST(Splitter, Behaviors) {
  using Pieces = std::vector<std::string>;
  const std::string text = "the-final--countdown";
  EXPECT_EQ(split("-", SplitBehavior::isolated, text),
            (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::removed, text), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::merged_with_previous, text),
            (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::merged_with_next, text),
            (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split("-", SplitBehavior::contiguous, text),
            (Pieces{"the", "-", "final", "--", "countdown"}));
}

TEST(Bpe, ScanAndHeapMergeAlike) {
  const auto document = nlohmann::json::parse(std::ifstream("models/books-11m/tokenizer.json"));
  const std::string file = "tokenizer.json";
  const Bpe bpe(JsonNode(document.at("model"), "model", file));
  test::Random random;
  BpeScratch scratch(0);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int32_t> ids;
    const auto length = random.integer(0, 60);
    // Letters of few kinds, so that much merges.
    for (int n = 0; n < length; ++n) {
      const char letter = "aehinorst "[random.integer(0, 9)];
      std::string symbol;
      append_byte_symbols(symbol, {&letter, 1});
      ids.push_back(bpe.vocabulary().find(symbol).value());
    }
    std::vector<std::int32_t> by_heap = ids;
    bpe.merge_by_scan(ids);
    bpe.merge_by_heap(by_heap, scratch);
    ASSERT_EQ(ids, by_heap);
  }
}

}  // namespace
}  // namespace adder::text
