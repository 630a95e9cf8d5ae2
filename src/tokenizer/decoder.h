#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_node.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex.h"

namespace adder::text {

/// The `decoder` of tokenizer.json: how the strings of tokens become text. Steps act on each token
/// alone until a step joins all of them (ByteLevel, Fuse); later steps act on the joined text.
///
/// Bytes are passed on as they are: what is not UTF-8 does not turn into U+FFFD.
class Decoder {
 public:
  /// Without a decoder in the file: tokens joined by spaces.
  Decoder() = default;
  explicit Decoder(const JsonNode& node);

  /// A token's bytes after the steps that act on tokens.
  std::string token_bytes(std::string_view token, bool added, bool first, bool last,
                          RegexScratch& scratch) const;
  /// A token's bytes in the middle of a text.
  std::string piece(std::string_view token, bool added) const;

 private:
  friend class DecodeStream;
  struct Replace {
    Regex pattern;
    std::string literal;  ///< empty for a regular expression
    std::string content;
  };
  struct Strip {
    std::string content;
    std::size_t start, stop;
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;
  };
  struct WordSuffix {
    std::string suffix;
  };
  struct ByteFallback {};
  struct ByteLevel {};
  using TokenStep = std::variant<Replace, Strip, Metaspace, WordSuffix, ByteFallback, ByteLevel>;
  using JoinedStep = std::variant<Replace, Strip>;

  struct TokenContext {
    bool added, first, last;
  };
  static void run(const Replace& step, const TokenContext& context, std::string& token,
                  RegexScratch& scratch);
  static void run(const Strip& step, const TokenContext& context, std::string& token,
                  RegexScratch& scratch);
  static void run(const Metaspace& step, const TokenContext& context, std::string& token,
                  RegexScratch& scratch);
  static void run(const WordSuffix& step, const TokenContext& context, std::string& token,
                  RegexScratch& scratch);
  static void run(const ByteFallback& step, const TokenContext& context, std::string& token,
                  RegexScratch& scratch);
  static void run(const ByteLevel& step, const TokenContext& context, std::string& token,
                  RegexScratch& scratch);

  void add(const JsonNode& node);
  void add_token_step(const JsonNode& node, TokenStep step);
  void add_either(const JsonNode& node, std::variant<Replace, Strip> step);

  std::vector<TokenStep> token_steps_;
  std::vector<JoinedStep> joined_steps_;
  bool joins_with_spaces_ = true;
  bool joined_ = false;       ///< a step has joined the tokens
  bool bytes_apart_ = false;  ///< tokens may be parts of characters until they are joined
  bool sees_last_ = false;    ///< a step treats the last token differently
};

/// Decodes tokens one at a time; the outputs concatenate to the whole text. Every output is as
/// early as the decoder allows; it may end within a character.
class DecodeStream {
 public:
  explicit DecodeStream(const Decoder& decoder)
      : decoder_(&decoder), joined_(decoder.joined_steps_.size()) {}

  void push(std::string_view token, bool added, std::string& out);
  void finish(std::string& out);

 private:
  struct JoinedState {
    std::string held;
    std::size_t stripped = 0;
    bool started = false;  ///< what is stripped at the start is behind
  };

  void emit(bool last, std::string& out);
  void join(std::size_t step, std::string_view text, bool final, std::string& out);
  static std::string run(const Decoder::Replace& step, JoinedState& state, bool final);
  static std::string run(const Decoder::Strip& step, JoinedState& state, bool final);

  const Decoder* decoder_;
  RegexScratch scratch_;
  std::string held_token_;
  bool held_added_ = false;
  bool holds_ = false;
  bool first_ = true;
  std::vector<JoinedState> joined_;
};

}  // namespace adder::text
