// Streams against the whole: the same ids however the text is cut, the same text however it is
// shown.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "adder/tokenizer.h"
#include "tests/support/random.h"
#include "tokenizer/unicode.h"

namespace adder {
namespace {

std::vector<std::filesystem::path> tokenizer_files() {
  std::vector<std::filesystem::path> paths = {"models/books-11m/tokenizer.json"};
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/tokenizer")) {
    if (entry.path().filename() != "cases.json") paths.push_back(entry.path());
  }
  return paths;
}

std::vector<std::string> short_texts() {
  std::vector<std::string> texts = {
      "  \n\n  don't  12345 na\xc3\xafve e\xcc\x81 \xe6\x97\xa5\xe6\x9c\xac  ",
      "the<|endoftext|>  <x>  word <y>   ab words \xe3\x80\x80<|x|>\xe3\x80\x80the",
      "ok \xff\xfe \xe2\x80 \xf0\x9f\x98 x\xcc\x81\xcc\x82 '\xc5\xbf",
      "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 \xef\xac\x81 II\r\n\r\n\tx''S   "};
  return texts;
}

std::vector<int> stream_encode(const Tokenizer& tokenizer, const std::vector<std::string>& pieces) {
  StreamEncoder encoder(tokenizer);
  std::vector<int> ids;
  for (const std::string& piece : pieces) encoder.push(piece, ids);
  encoder.finish(ids);
  return ids;
}

TEST(StreamEncoder, EverySplitOfShortTexts) {
  for (const auto& path : tokenizer_files()) {
    const Tokenizer tokenizer = Tokenizer::load(path);
    for (const std::string& text : short_texts()) {
      const auto whole = tokenizer.encode(text);
      for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        ASSERT_EQ(stream_encode(tokenizer, {text.substr(0, cut), text.substr(cut)}), whole)
            << path << " at " << cut << " of " << text;
      }
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      ASSERT_EQ(stream_encode(tokenizer, bytes), whole) << path << ": " << text;
    }
  }
}

TEST(StreamEncoder, RandomSplitsOfLongTexts) {
  test::Random random;
  std::string text;
  for (int i = 0; i < 60; ++i) {
    for (const std::string& part : short_texts()) {
      const auto begin = static_cast<std::size_t>(random.integer(0, 10));
      text += part.substr(begin, static_cast<std::size_t>(random.integer(0, 60)));
    }
  }
  text += std::string(9000, 'a') + std::string(9000, ' ') + std::string(9000, '.');
  for (const auto& path : tokenizer_files()) {
    const Tokenizer tokenizer = Tokenizer::load(path);
    const auto whole = tokenizer.encode(text);
    for (const int longest : {3, 50, 5000}) {
      std::vector<std::string> pieces;
      for (std::size_t begin = 0; begin < text.size(); begin += pieces.back().size()) {
        pieces.push_back(text.substr(begin, static_cast<std::size_t>(random.integer(1, longest))));
      }
      ASSERT_EQ(stream_encode(tokenizer, pieces), whole) << path << ", pieces up to " << longest;
    }
  }
}

TEST(StreamEncoder, IdsComeEarlyAndAStreamCanBeUsedAgain) {
  const Tokenizer tokenizer = Tokenizer::load("models/books-11m");
  StreamEncoder encoder(tokenizer);
  for (int round = 0; round < 2; ++round) {
    std::vector<int> ids;
    std::size_t most_waiting = 0;
    std::string text;
    for (int i = 0; i < 2000; ++i) {
      const std::string piece = i % 10 == 9 ? ".\n" : " snake";
      text += piece;
      encoder.push(piece, ids);
      most_waiting = std::max(most_waiting, text.size() - tokenizer.decode(ids).size());
    }
    EXPECT_LE(most_waiting, 16u);  // a word and the character that ends it
    encoder.finish(ids);
    EXPECT_EQ(ids, tokenizer.encode(text));
  }
}

TEST(StreamDecoder, NeverEndsWithinACharacter) {
  for (const auto& path : tokenizer_files()) {
    const Tokenizer tokenizer = Tokenizer::load(path);
    for (const std::string& text : short_texts()) {
      if (text::valid_prefix(text) != text.size()) continue;
      const auto ids = tokenizer.encode(text);
      StreamDecoder decoder(tokenizer);
      std::string shown;
      for (const int id : ids) {
        shown += decoder.push(id);
        ASSERT_EQ(text::valid_prefix(shown), shown.size()) << path << ": " << text;
      }
      shown += decoder.finish();
      EXPECT_EQ(shown, tokenizer.decode(ids)) << path;
    }
  }
}

TEST(StreamDecoder, AnyIdsGiveWhatDecodeGives) {
  test::Random random;
  for (const auto& path : tokenizer_files()) {
    const Tokenizer tokenizer = Tokenizer::load(path);
    for (int i = 0; i < 100; ++i) {
      std::vector<int> ids;
      for (int n = 0; n < 30; ++n) {
        const int id = static_cast<int>(random.integer(0, tokenizer.vocab_size() - 1));
        if (tokenizer.has_token(id)) ids.push_back(id);
      }
      for (const bool skip : {false, true}) {
        StreamDecoder decoder(tokenizer, skip);
        std::string shown;
        for (const int id : ids) shown += decoder.push(id);
        shown += decoder.finish();
        ASSERT_EQ(shown, tokenizer.decode(ids, skip)) << path;
      }
    }
  }
}

}  // namespace
}  // namespace adder
