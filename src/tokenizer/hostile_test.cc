// Files that are no tokenizer: each ends in one sentence that names the file and the key.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "adder/tokenizer.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using nlohmann::json;

json small_tokenizer() {
  return json::parse(R"({
    "added_tokens": [{"id": 6, "content": "<e>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
              "merges": ["a b", ["ab", "c"]]}
  })");
}

std::string error_of(const std::string& text) {
  return test::error_of(
      [&] { Tokenizer::from_json(text, "some/tokenizer.json").encode("abc <e> abc"); });
}

/// The error of the small tokenizer with the value at a JSON pointer replaced.
std::string error_with(const char* pointer, const char* value) {
  json document = small_tokenizer();
  document[json::json_pointer(pointer)] = json::parse(value);
  return error_of(document.dump());
}

void expect_mentions(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(TokenizerFile, TheSmallOneIsFine) {
  const Tokenizer tokenizer = Tokenizer::from_json(small_tokenizer().dump(), "small");
  EXPECT_EQ(tokenizer.encode("abcab<e>"), (std::vector<int>{4, 3, 6}));
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_FALSE(tokenizer.has_token(5));  // a hole
  EXPECT_THROW(tokenizer.decode(std::vector<int>{5}), Error);
}

TEST(TokenizerFile, MissingOrBroken) {
  EXPECT_THROW(Tokenizer::load("no/such/folder"), Error);
  EXPECT_THROW(Tokenizer::load("tests"), Error);
  expect_mentions(error_of(""), {"some/tokenizer.json"});
  expect_mentions(error_of("[1, 2]"), {"some/tokenizer.json", "array", "object"});
  expect_mentions(error_of("{}"), {"some/tokenizer.json", "model"});
  expect_mentions(error_of("{\"model\": \"\xff\"}"), {"some/tokenizer.json"});
  expect_mentions(error_of(std::string(1 << 20, '[')), {"some/tokenizer.json", "64 deep"});
  expect_mentions(error_of(small_tokenizer().dump().substr(0, 100)), {"some/tokenizer.json"});
}

TEST(TokenizerFile, UnsupportedComponents) {
  expect_mentions(error_with("/model/type", R"("Unigram")"), {"model", "Unigram", "BPE"});
  expect_mentions(error_with("/model/type", R"("WordPiece")"), {"model", "WordPiece", "BPE"});
  expect_mentions(error_with("/model", R"({"vocab": {}})"), {"model", "BPE"});
  expect_mentions(error_with("/normalizer", R"({"type": "BertNormalizer"})"),
                  {"normalizer", "BertNormalizer", "NFC"});
  expect_mentions(
      error_with("/pre_tokenizer",
                 R"({"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}]})"),
      {"pre_tokenizer.pretokenizers[0]", "UnicodeScripts", "ByteLevel"});
  expect_mentions(error_with("/post_processor", R"({"type": "Surprise"})"),
                  {"post_processor", "Surprise", "TemplateProcessing"});
  expect_mentions(error_with("/decoder", R"({"type": "CTC"})"), {"decoder", "CTC", "ByteLevel"});
  expect_mentions(error_with("/model/dropout", "0.1"), {"model.dropout", "0.1"});
}

TEST(TokenizerFile, WrongValues) {
  expect_mentions(error_with("/model/vocab", "[]"), {"model.vocab", "array", "object"});
  expect_mentions(error_with("/model/vocab/a", "-1"), {"model.vocab", "'a'", "-1"});
  expect_mentions(error_with("/model/vocab/a", "1.5"), {"model.vocab", "'a'", "1.5"});
  expect_mentions(error_with("/model/vocab/a", "18446744073709551615"), {"model.vocab", "'a'"});
  expect_mentions(error_with("/model/vocab/a", "4194304"), {"model.vocab", "'a'", "4194303"});
  expect_mentions(error_with("/model/vocab/a", "1"), {"model.vocab", "id 1", "'a'", "'b'"});
  expect_mentions(error_with("/model/merges/0", R"("a z")"), {"model.merges", "[0]", "'z'"});
  expect_mentions(error_with("/model/merges/0", R"("b c")"), {"model.merges", "[0]", "'bc'"});
  expect_mentions(error_with("/model/merges/1", R"("a b c")"), {"model.merges", "[1]"});
  expect_mentions(error_with("/model/merges/1", R"(["a"])"), {"model.merges", "[1]"});
  expect_mentions(error_with("/model/merges", "7"), {"model.merges", "number"});
  expect_mentions(error_with("/model/unk_token", R"("?")"), {"model.unk_token", "'?'"});
  expect_mentions(error_with("/model/ignore_merges", "3"), {"model.ignore_merges", "number"});
  expect_mentions(error_with("/added_tokens/0/id", "-3"), {"added_tokens[0].id", "-3"});
  expect_mentions(error_with("/added_tokens/0/id", "2"), {"added_tokens", "'<e>'", "'c'"});
  expect_mentions(error_with("/added_tokens/0/content", R"("")"), {"added_tokens[0].content"});
  expect_mentions(error_with("/added_tokens/0/content", R"("a")"), {"added_tokens", "[0]", "'a'"});
  expect_mentions(error_with("/added_tokens", R"([{"id": 6, "content": "x"},
                                                  {"id": 6, "content": "y"}])"),
                  {"added_tokens", "[1]", "id 6"});
  expect_mentions(error_with("/added_tokens", R"([{"id": 6, "content": "x"},
                                                  {"id": 7, "content": "x"}])"),
                  {"added_tokens", "[1]", "'x'"});
  expect_mentions(error_with("/normalizer", R"({"type": "Strip", "strip_left": true})"),
                  {"normalizer", "strip_right"});
}

TEST(TokenizerFile, Patterns) {
  const auto with_pattern = [](const std::string& pattern) {
    const json split = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    return error_with("/pre_tokenizer", split.dump().c_str());
  };
  expect_mentions(with_pattern("(a"), {"some/tokenizer.json", "pre_tokenizer.pattern", "(a"});
  expect_mentions(with_pattern("[[:alpha:]]"), {"pre_tokenizer.pattern", "POSIX"});
  expect_mentions(with_pattern("\\p{Klingon}"), {"pre_tokenizer.pattern", "Klingon"});
  EXPECT_EQ(with_pattern("\\s+"), "no error");
}

TEST(TokenizerFile, PatternsThatBacktrackWithoutBoundAreErrors) {
  json document = small_tokenizer();
  document["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a|aa)+[bc]"}}}, {"behavior", "Isolated"}};
  const Tokenizer tokenizer = Tokenizer::from_json(document.dump(), "hostile");
  EXPECT_THROW(tokenizer.encode(std::string(100, 'a') + "d"), Error);
}

TEST(TokenizerFile, TemplatesAndDecoderOrder) {
  expect_mentions(
      error_with("/post_processor",
                 R"({"type": "TemplateProcessing", "special_tokens": {}, "single": []})"),
      {"post_processor.single", "0 times"});
  expect_mentions(error_with("/post_processor",
                             R"({"type": "BertProcessing", "sep": ["x", 99], "cls": ["y", 0]})"),
                  {"post_processor", "99"});
  expect_mentions(error_with("/decoder", R"({"type": "Sequence", "decoders":
                                            [{"type": "Fuse"}, {"type": "ByteLevel"}]})"),
                  {"decoder.decoders[1]", "ByteLevel"});
}

}  // namespace
}  // namespace adder
