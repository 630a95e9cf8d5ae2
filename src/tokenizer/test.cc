// Ids and texts against those of the library that the file format comes from.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "adder/tokenizer.h"
#include "tests/support/random.h"
#include "tokenizer/unicode.h"

namespace adder {
namespace {

nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

const Tokenizer& bundled() {
  static const Tokenizer tokenizer = Tokenizer::load("models/books-11m");
  return tokenizer;
}

void expect_cases(const Tokenizer& tokenizer, const nlohmann::json& cases) {
  for (const auto& c : cases) {
    const auto ids = c.at("ids").get<std::vector<int>>();
    EXPECT_EQ(tokenizer.encode(c.at("text").get<std::string>()), ids) << c.at("text");
    if (c.contains("decoded")) {
      EXPECT_EQ(tokenizer.decode(ids), c["decoded"].get<std::string>()) << c.at("text");
    }
  }
}

TEST(Tokenizer, BundledModel) {
  const auto cases = read_json("tests/data/books-11m/tokenizer_cases.json");
  ASSERT_GE(cases.size(), 20u);
  expect_cases(bundled(), cases);
  EXPECT_EQ(bundled().vocab_size(), 4096);
}

// GPT-NeoX, cl100k, o200k, Falcon, Llama and others in small: the same components, fewer merges.
TEST(Tokenizer, OtherKindsOfTokenizer) {
  const auto all = read_json("tests/data/tokenizer/cases.json");
  ASSERT_GE(all.size(), 10u);
  for (const auto& [name, cases] : all.items()) {
    SCOPED_TRACE(name);
    ASSERT_GE(cases.size(), 20u);
    expect_cases(Tokenizer::load("tests/data/tokenizer/" + name + ".json"), cases);
  }
}

TEST(Tokenizer, TokensByIdAndByName) {
  const int end = bundled().token_id("<|endoftext|>").value();
  EXPECT_EQ(end, 0);
  EXPECT_TRUE(bundled().is_special(end));
  EXPECT_FALSE(bundled().is_special(40));
  EXPECT_EQ(bundled().token_text(bundled().encode(" the").at(0)), "\xc4\xa0the");
  EXPECT_EQ(bundled().piece(bundled().encode(" the").at(0)), " the");
  EXPECT_FALSE(bundled().token_id("no such token").has_value());
  EXPECT_FALSE(bundled().has_token(-1));
  EXPECT_FALSE(bundled().has_token(4096));
  for (const int id : {-1, 4096, 1 << 30}) {
    EXPECT_THROW(bundled().decode(std::vector<int>{id}), Error);
    EXPECT_THROW(bundled().piece(id), Error);
  }
}

TEST(Tokenizer, SpecialTokensInText) {
  const std::string text = "one<|endoftext|>two";
  const auto parsed = bundled().encode(text);
  EXPECT_EQ(std::count(parsed.begin(), parsed.end(), 0), 1);
  const auto plain = bundled().encode(text, {.parse_special = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 0), 0);
  EXPECT_EQ(bundled().decode(plain), text);
  EXPECT_EQ(bundled().decode(parsed), text);
  EXPECT_EQ(bundled().decode(parsed, /*skip_special=*/true), "onetwo");
}

TEST(Tokenizer, PostProcessorIsOptional) {
  const Tokenizer tokenizer = Tokenizer::load("tests/data/tokenizer/llama.json");
  const auto with = tokenizer.encode("the snake");
  auto without = tokenizer.encode("the snake", {.add_special_tokens = false});
  without.insert(without.begin(), tokenizer.token_id("<s>").value());
  EXPECT_EQ(with, without);
}

/// A string of Unicode, mostly from ranges where something happens.
std::string random_text(test::Random& random, int length) {
  constexpr std::pair<int, int> kRanges[] = {{0, 0x7f},        {0x20, 0x7e},      {0x41, 0x7a},
                                             {0x80, 0x24f},    {0x300, 0x36f},    {0x370, 0x1fff},
                                             {0x2000, 0x206f}, {0x3000, 0x9fff},  {0xac00, 0xd7a3},
                                             {0xe000, 0xffff}, {0x10000, 0x1ffff}};
  std::string text;
  for (int i = 0; i < length; ++i) {
    const auto& [low, high] = kRanges[random.integer(0, std::size(kRanges) - 1)];
    text::append_utf8(text, static_cast<char32_t>(random.integer(low, high)));
    if (random.integer(0, 3) == 0) text += ' ';
  }
  return text;
}

TEST(Tokenizer, ByteLevelTextComesBackUnchanged) {
  const Tokenizer tokenizer = Tokenizer::load("tests/data/tokenizer/o200k.json");
  test::Random random;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random, static_cast<int>(random.integer(0, 40)));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, {.add_special_tokens = false})), text);
  }
}

TEST(Tokenizer, BytesThatAreNoTextComeBackUnchanged) {
  const Tokenizer tokenizer = Tokenizer::load("tests/data/tokenizer/cl100k.json");
  test::Random random(1);
  for (int i = 0; i < 4000; ++i) {
    std::string bytes(static_cast<std::size_t>(random.integer(0, 60)), '\0');
    for (char& c : bytes) c = static_cast<char>(random.integer(0, 255));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(bytes, {.add_special_tokens = false})), bytes);
  }
}

TEST(Tokenizer, LongWordsAndRunsOfSpacesTakeLinearithmicTime) {
  // A quadratic algorithm would need hours for these.
  std::string word(std::size_t{1} << 20, 'a');
  test::Random random;
  for (char& c : word) c = static_cast<char>('a' + random.integer(0, 25));
  EXPECT_EQ(bundled().decode(bundled().encode(word)), word);
  const std::string spaces(std::size_t{1} << 20, ' ');
  EXPECT_EQ(bundled().decode(bundled().encode(spaces + "x")), spaces + "x");
  const Tokenizer llama = Tokenizer::load("tests/data/tokenizer/llama.json");
  EXPECT_EQ(llama.decode(llama.encode(word), true), word);
}

TEST(Tokenizer, ThreadsShareOne) {
  const std::string text = "It was a dark night; they're 42 sna\xc3\xafve snakes. \n\n";
  const auto expected = bundled().encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t, copy = bundled()] {
      for (int i = 0; i < 200; ++i) equal[t] += copy.encode(text) == expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

}  // namespace
}  // namespace adder
