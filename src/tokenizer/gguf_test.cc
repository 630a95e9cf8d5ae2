// Tokenizers of GGUF files: the ids are those of the tokenizer.json with the same tokens, merges
// and patterns, and a file that describes none ends in a sentence.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "adder/tokenizer.h"
#include "tests/support/error_of.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random.h"
#include "tokenizer/unicode.h"

namespace adder {
namespace {

using nlohmann::json;
using test::GgufBuilder;

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }

/// The numbers of token types.
enum TokenType : std::int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;
};

/// The vocabulary and the added tokens of a tokenizer.json as a GGUF file lists them.
Tokens tokens_of(const json& document) {
  Tokens out;
  const auto put = [&](std::size_t id, const std::string& text, std::int32_t type) {
    while (out.texts.size() <= id) {
      out.texts.push_back(fmt::format("[PAD{}]", out.texts.size()));
      out.types.push_back(kUnused);
    }
    out.texts[id] = text;
    out.types[id] = type;
  };
  for (const auto& [token, id] : document["model"]["vocab"].items()) {
    put(id.get<std::size_t>(), token, kNormal);
  }
  for (const json& token : document["added_tokens"]) {
    put(token["id"].get<std::size_t>(), token["content"].get<std::string>(),
        token["special"].get<bool>() ? kControl : kUserDefined);
  }
  return out;
}

void set_tokens(GgufBuilder& file, const Tokens& tokens) {
  file.set_texts("tokenizer.ggml.tokens", tokens.texts);
  file.set_i32s("tokenizer.ggml.token_type", tokens.types);
}

GgufBuilder gpt2_file(const json& document, const std::string& pre) {
  GgufBuilder file;
  file.set_text("tokenizer.ggml.model", "gpt2");
  file.set_text("tokenizer.ggml.pre", pre);
  set_tokens(file, tokens_of(document));
  std::vector<std::string> merges;
  for (const json& merge : document["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  file.set_texts("tokenizer.ggml.merges", merges);
  return file;
}

Tokenizer load(const GgufBuilder& file) {
  const std::string bytes = file.build();
  return Tokenizer::from_gguf(std::as_bytes(std::span(bytes)), "x.gguf");
}

/// What a GGUF file cannot say is taken out of a tokenizer.json.
json stripped(json document) {
  document["normalizer"] = nullptr;
  document["post_processor"] = nullptr;
  for (json& token : document["added_tokens"]) {
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) token[key] = false;
  }
  return document;
}

/// Texts where the patterns differ: those of all other tokenizer tests, and random ones.
std::vector<std::string> texts() {
  std::vector<std::string> out;
  const json cases = read_json("tests/data/tokenizer/cases.json");
  for (const auto& [name, list] : cases.items()) {
    for (const json& c : list) out.push_back(c["text"].get<std::string>());
  }
  const std::vector<std::string> pieces = {
      "the",  " ",    "  ", "\n",  "\t",       "Snake", "'s", "'LL",          "12",
      "7",    "3456", "!",  "...", "\xc3\xa9", "$",     "`",  "\xe4\xb8\xad", "a",
      "\r\n", "|^~",  "_",  "an",  " 888",     "x1y2",  "e",  "<s>",          "\xd0\xb2"};
  test::Random random;
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (std::int64_t n = random.integer(0, 12); n > 0; --n) {
      text += pieces[static_cast<std::size_t>(
          random.integer(0, static_cast<std::int64_t>(pieces.size()) - 1))];
    }
    out.push_back(text);
  }
  return out;
}

void expect_same(const Tokenizer& got, const Tokenizer& expected) {
  for (const std::string& text : texts()) {
    for (const bool special : {true, false}) {
      const auto ids = expected.encode(text, {.parse_special = special});
      ASSERT_EQ(got.encode(text, {.parse_special = special}), ids) << text;
      ASSERT_EQ(got.decode(ids), expected.decode(ids)) << text;
    }
  }
  for (int id = 0; id < expected.vocab_size(); ++id) {
    ASSERT_EQ(got.has_token(id), expected.has_token(id)) << id;
    if (!got.has_token(id)) continue;
    EXPECT_EQ(got.piece(id), expected.piece(id)) << id;
    EXPECT_EQ(got.is_special(id), expected.is_special(id)) << id;
  }
}

json words(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}
json byte_level(bool cuts) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", cuts}};
}
json stages(std::vector<json> list) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(list)}};
}

TEST(GgufTokenizer, GptNeoX) {
  const json document = stripped(read_json("tests/data/tokenizer/gpt_neox.json"));
  const Tokenizer expected = Tokenizer::from_json(document.dump(), "json");
  for (const char* pre : {"gpt-2", "mpt", "olmo"}) {
    expect_same(load(gpt2_file(document, pre)), expected);
  }
}

TEST(GgufTokenizer, PatternsBeforeThoseOfGpt2) {
  json document = stripped(read_json("tests/data/tokenizer/falcon.json"));
  const auto expect = [&](const char* pre, std::vector<json> list) {
    SCOPED_TRACE(pre);
    document["pre_tokenizer"] = stages(std::move(list));
    const Tokenizer expected = Tokenizer::from_json(document.dump(), "json");
    expect_same(load(gpt2_file(document, pre)), expected);
  };
  const json punctuation = {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
  const json digits = {{"type", "Digits"}, {"individual_digits", false}};
  const json each_digit = {{"type", "Digits"}, {"individual_digits", true}};
  expect("falcon", {punctuation, byte_level(true), words("[0-9]{3}")});
  expect("smollm", {each_digit, byte_level(true)});
  expect("starcoder", {each_digit, byte_level(true)});
  // A token of two bytes, whose second has a superscript for a symbol, and one of a space and a
  // digit.
  document["model"]["vocab"]["\xc3\x90\xc2\xb2"] = 400;
  document["model"]["vocab"]["\xc4\xa0" + std::string("7")] = 401;
  document["model"]["merges"].push_back("\xc3\x90 \xc2\xb2");
  document["model"]["merges"].push_back("\xc4\xa0 7");
  EXPECT_EQ(load(gpt2_file(document, "default")).encode("\xd0\xb2"), std::vector<int>{400});
  // As Falcon's, without the backtick among the punctuation, and with digits apart. Superscripts
  // are digits, and among the symbols of bytes: so bytes become symbols last.
  const std::string gpt2 =
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  expect("default",
         {words("[\\p{P}$+<=>^~|]+"), words(gpt2), digits, words("[0-9]{3}"), byte_level(false)});
}

TEST(GgufTokenizer, PatternsOfCl100k) {
  const json with_merges = read_json("tests/data/tokenizer/cl100k.json");
  json document = with_merges;
  const Tokenizer llama3 = Tokenizer::from_json(document.dump(), "json");
  GgufBuilder file = gpt2_file(document, "llama-bpe");
  file.set_u32("tokenizer.ggml.bos_token_id", 0);
  expect_same(load(file), llama3);  // it begins texts with a token, and ignores merges
  file.set_bool("tokenizer.ggml.add_bos_token", false);
  document["post_processor"] = nullptr;
  expect_same(load(file), Tokenizer::from_json(document.dump(), "json"));
  document["model"]["ignore_merges"] = false;
  const Tokenizer dbrx = Tokenizer::from_json(document.dump(), "json");
  expect_same(load(gpt2_file(document, "dbrx")), dbrx);
  std::string pattern = document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  pattern.replace(pattern.find("{1,3}"), 5, "");
  document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
  expect_same(load(gpt2_file(document, "qwen2")), Tokenizer::from_json(document.dump(), "json"));
}

TEST(GgufTokenizer, MissingPreIsTheDefault) {
  const json document = read_json("tests/data/tokenizer/falcon.json");
  GgufBuilder file = gpt2_file(document, "default");
  const Tokenizer expected = load(file);
  file.erase("tokenizer.ggml.pre");
  expect_same(load(file), expected);
}

TEST(GgufTokenizer, BeginAndEndOfText) {
  const json document = stripped(read_json("tests/data/tokenizer/gpt_neox.json"));
  GgufBuilder file = gpt2_file(document, "olmo");
  const auto plain = load(file).encode("the snake");
  file.set_u32("tokenizer.ggml.bos_token_id", 3);
  file.set_u32("tokenizer.ggml.eos_token_id", 4);
  EXPECT_EQ(load(file).encode("the snake"), plain);
  file.set_bool("tokenizer.ggml.add_bos_token", true);
  file.set_bool("tokenizer.ggml.add_eos_token", true);
  auto with = plain;
  with.insert(with.begin(), 3);
  with.push_back(4);
  EXPECT_EQ(load(file).encode("the snake"), with);
  EXPECT_EQ(load(file).encode("the snake", {.add_special_tokens = false}), plain);
}

/// SentencePiece's algorithm on the letters of a text, as its paper code does it.
std::vector<int> sentencepiece(const Tokens& tokens, const std::vector<float>& scores,
                               const std::string& text) {
  std::string spaced = "\xe2\x96\x81";
  for (const char c : text) spaced += c == ' ' ? "\xe2\x96\x81" : std::string(1, c);
  const auto id_of = [&](const std::string& token) {
    const auto at = std::find(tokens.texts.begin(), tokens.texts.end(), token);
    return at == tokens.texts.end() ? -1 : static_cast<int>(at - tokens.texts.begin());
  };
  std::vector<std::string> symbols;
  for (std::size_t i = 0; i < spaced.size();) {
    const std::size_t length = text::code_point_at(spaced, i).length;
    symbols.push_back(spaced.substr(i, length));
    i += length;
  }
  while (true) {
    int best = -1;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const int id = id_of(symbols[i] + symbols[i + 1]);
      if (id < 0) continue;
      if (best < 0 ||
          scores[static_cast<std::size_t>(id)] > scores[static_cast<std::size_t>(best)]) {
        best = id;
        place = i;
      }
    }
    if (best < 0) break;
    symbols[place] += symbols[place + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  std::vector<int> ids;
  for (const std::string& symbol : symbols) ids.push_back(id_of(symbol));
  return ids;
}

/// A vocabulary over a, b and c with tokens that several pairs make, some with equal scores.
GgufBuilder llama_file(Tokens& tokens, std::vector<float>& scores) {
  tokens = {{"<unk>", "<s>", "</s>"}, {kUnknown, kControl, kControl}};
  for (int b = 0; b < 256; ++b) {
    tokens.texts.push_back(fmt::format("<0x{:02X}>", b));
    tokens.types.push_back(kByte);
  }
  const std::string space = "\xe2\x96\x81";
  for (const std::string& token :
       {std::string("ab"), std::string("aa"), std::string("bc"), std::string("bb"),
        std::string("abc"), space + "a", std::string("aaa"), space + "ab", space + space,
        std::string("abab"), std::string("aaaa"), std::string("a"), std::string("b"),
        std::string("c"), space}) {
    tokens.texts.push_back(token);
    tokens.types.push_back(kNormal);
  }
  scores.assign(tokens.texts.size(), 0.0F);
  for (std::size_t i = 259; i < scores.size(); ++i) scores[i] = -static_cast<float>((i - 259) / 2);
  GgufBuilder file;
  file.set_text("tokenizer.ggml.model", "llama");
  set_tokens(file, tokens);
  file.set("tokenizer.ggml.scores", test::kGgufArray,
           test::raw<std::uint32_t>(test::kGgufF32) + test::raw<std::uint64_t>(scores.size()) +
               test::raw_array(std::span<const float>(scores)));
  file.set_u32("tokenizer.ggml.bos_token_id", 1);
  file.set_u32("tokenizer.ggml.eos_token_id", 2);
  file.set_u32("tokenizer.ggml.unknown_token_id", 0);
  return file;
}

TEST(GgufTokenizer, SentencePieceMergesByScore) {
  Tokens tokens;
  std::vector<float> scores;
  const GgufBuilder file = llama_file(tokens, scores);
  const Tokenizer tokenizer = load(file);
  test::Random random;
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (std::int64_t n = random.integer(1, 60); n > 0; --n) text += "abc a"[random.integer(0, 4)];
    auto expected = sentencepiece(tokens, scores, text);
    expected.insert(expected.begin(), 1);
    ASSERT_EQ(tokenizer.encode(text), expected) << text;
    ASSERT_EQ(tokenizer.decode(expected, /*skip_special=*/true), text);
  }
  // Bytes where there is no token, and control tokens where they are asked for.
  EXPECT_EQ(tokenizer.encode("\xc3\xa9", {.add_special_tokens = false}),
            (std::vector<int>{273, 3 + 0xc3, 3 + 0xa9}));
  EXPECT_EQ(tokenizer.encode("</s>").back(), 2);
  EXPECT_NE(tokenizer.encode("</s>", {.parse_special = false}).back(), 2);
}

TEST(GgufTokenizer, SentencePieceWithoutASpaceInFront) {
  Tokens tokens;
  std::vector<float> scores;
  GgufBuilder file = llama_file(tokens, scores);
  file.set_bool("tokenizer.ggml.add_space_prefix", false);
  file.set_bool("tokenizer.ggml.add_bos_token", false);
  const Tokenizer tokenizer = load(file);
  const auto ids = tokenizer.encode("abc");
  EXPECT_EQ(tokenizer.token_text(ids.at(0)).front(), 'a');
  EXPECT_EQ(tokenizer.decode(ids), "abc");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" abc")), " abc");
}

std::string error_with(const std::function<void(GgufBuilder&)>& change) {
  GgufBuilder file = gpt2_file(stripped(read_json("tests/data/tokenizer/gpt_neox.json")), "olmo");
  change(file);
  return test::error_of([&] { load(file); });
}

std::string llama_error_with(const std::function<void(GgufBuilder&)>& change) {
  Tokens tokens;
  std::vector<float> scores;
  GgufBuilder file = llama_file(tokens, scores);
  change(file);
  return test::error_of([&] { load(file); });
}

void expect_mentions(const std::string& message, std::initializer_list<const char*> parts) {
  EXPECT_NE(message.find("x.gguf"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
  }
}

TEST(GgufTokenizer, RefusesWhatItCannotRepresent) {
  expect_mentions(error_with([](auto& f) { f.erase("tokenizer.ggml.model"); }),
                  {"no tokenizer.ggml.model"});
  expect_mentions(error_with([](auto& f) { f.set_text("tokenizer.ggml.model", "rwkv"); }),
                  {"tokenizer.ggml.model", "\"rwkv\"", "gpt2 or llama"});
  expect_mentions(error_with([](auto& f) { f.set_text("tokenizer.ggml.pre", "tekken"); }),
                  {"tokenizer.ggml.pre", "\"tekken\""});
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    expect_mentions(error_with([&](auto& f) { f.erase(key); }), {"has no", key});
    expect_mentions(error_with([&](auto& f) { f.set_u32(key, 3); }), {key, "u32"});
  }
  expect_mentions(llama_error_with([](auto& f) { f.erase("tokenizer.ggml.scores"); }),
                  {"has no tokenizer.ggml.scores"});
}

TEST(GgufTokenizer, RefusesWrongLists) {
  using Texts = std::vector<std::string>;
  const auto tokens = [](const Texts& list) {
    return [list](GgufBuilder& f) {
      f.set_texts("tokenizer.ggml.tokens", list);
      f.set_i32s("tokenizer.ggml.token_type", std::vector<std::int32_t>(list.size(), kNormal));
    };
  };
  expect_mentions(error_with(tokens({"a", "b", "a"})), {"\"a\" at 0 and at 2"});
  expect_mentions(error_with(tokens({"a", "\xff"})), {"at 1", "no UTF-8"});
  const auto merges = [](const Texts& list) {
    return [list](GgufBuilder& f) { f.set_texts("tokenizer.ggml.merges", list); };
  };
  expect_mentions(error_with(merges({"ab"})), {"merges", "\"ab\" at 0", "space"});
  expect_mentions(error_with(merges({" "})), {"merges", "space"});
  expect_mentions(error_with(merges({""})), {"merges", "space"});
  expect_mentions(error_with(merges({"a \xf0\x9f\x90\x8d"})), {"merges", "not in"});
  expect_mentions(error_with(merges({"z z"})), {"\"zz\"", "not in"});
  expect_mentions(error_with([](auto& f) {
                    f.set_i32s("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1});
                  }),
                  {"token_type", "2 elements"});
  expect_mentions(error_with([](auto& f) {
                    f.set_texts("tokenizer.ggml.tokens", Texts{std::string(1025, 'x')});
                    f.set_i32s("tokenizer.ggml.token_type", std::vector<std::int32_t>{kControl});
                    f.set_texts("tokenizer.ggml.merges", Texts{});
                  }),
                  {"1025 bytes"});
  for (const std::uint32_t id : {400U, 4194304U, ~0U}) {
    expect_mentions(error_with([&](auto& f) {
                      f.set_bool("tokenizer.ggml.add_bos_token", true);
                      f.set_u32("tokenizer.ggml.bos_token_id", id);
                    }),
                    {"bos_token_id", std::to_string(id).c_str()});
  }
  expect_mentions(error_with([](auto& f) { f.set_bool("tokenizer.ggml.add_bos_token", true); }),
                  {"add_bos_token", "no tokenizer.ggml.bos_token_id"});
  expect_mentions(llama_error_with([](auto& f) {
                    const std::vector<float> two = {1.0F, 2.0F};
                    f.set("tokenizer.ggml.scores", test::kGgufArray,
                          test::raw<std::uint32_t>(test::kGgufF32) + test::raw<std::uint64_t>(2) +
                              test::raw_array(std::span<const float>(two)));
                  }),
                  {"scores", "2 elements"});
}

}  // namespace
}  // namespace adder
