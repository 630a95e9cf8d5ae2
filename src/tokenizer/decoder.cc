#include "tokenizer/decoder.h"

#include <algorithm>

#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"

namespace adder::text {
namespace {

constexpr std::int64_t kMaxStripped = 1024;

std::string replace_literal(std::string_view text, std::string_view literal,
                            std::string_view content) {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, copied)) {
    out.append(text.substr(copied, at - copied)).append(content);
    copied = at + literal.size();
  }
  return out.append(text.substr(copied));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Decoder::Decoder(const JsonNode& node) : joins_with_spaces_(false) { add(node); }

void Decoder::add(const JsonNode& node) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    for (const JsonNode& step : node.at("decoders").elements()) add(step);
  } else if (type == "ByteLevel") {
    add_token_step(node, ByteLevel{});
    joined_ = true;
  } else if (type == "ByteFallback") {
    add_token_step(node, ByteFallback{});
    bytes_apart_ = true;
  } else if (type == "Fuse") {
    joined_ = true;
  } else if (type == "Metaspace") {
    const MetaspaceOptions options(node);
    add_token_step(node, Metaspace{options.replacement, options.scheme != PrefixScheme::never});
  } else if (type == "BPEDecoder") {
    const std::string& suffix = node.at("suffix").string();
    if (suffix.empty()) node.at("suffix").error("is empty, expected at least one character");
    add_token_step(node, WordSuffix{suffix});
    sees_last_ = true;
  } else if (type == "Replace") {
    const PatternText pattern(node);
    add_either(node, Replace{Regex(pattern.regex, node.file() + ": " + node.path() + ".pattern"),
                             pattern.literal, node.at("content").string()});
  } else if (type == "Strip") {
    Strip step{node.at("content").string(),
               static_cast<std::size_t>(node.at("start").integer(0, kMaxStripped)),
               static_cast<std::size_t>(node.at("stop").integer(0, kMaxStripped))};
    if (step.content.empty() || code_point_at(step.content, 0).length != step.content.size()) {
      node.at("content").error("is '{}', expected one character", step.content);
    }
    add_either(node, std::move(step));
  } else {
    node.error(
        "is a decoder of type '{}', expected ByteLevel, ByteFallback, Fuse, Metaspace, BPEDecoder, "
        "Replace, Strip or Sequence",
        type);
  }
}

void Decoder::add_token_step(const JsonNode& node, TokenStep step) {
  if (joined_ || bytes_apart_) {
    node.error("of type '{}' comes after {}, expected only {}", node.at("type").string(),
               joined_ ? "a decoder that joins all tokens" : "ByteFallback",
               joined_ ? "Replace and Strip there" : "Fuse there");
  }
  token_steps_.push_back(std::move(step));
}

void Decoder::add_either(const JsonNode& node, std::variant<Replace, Strip> step) {
  if (!joined_) {
    std::visit([&](auto& s) { add_token_step(node, std::move(s)); }, step);
    return;
  }
  if (const auto* replace = std::get_if<Replace>(&step); replace && replace->literal.empty()) {
    node.at("pattern").error(
        "is a regular expression after the tokens were joined, expected a string");
  }
  joined_steps_.push_back(std::move(step));
}

std::string Decoder::token_bytes(std::string_view token, bool added, bool first, bool last,
                                 RegexScratch& scratch) const {
  std::string out(token);
  const TokenContext context{added, first, last};
  for (const TokenStep& step : token_steps_) {
    std::visit([&](const auto& s) { run(s, context, out, scratch); }, step);
  }
  return out;
}

std::string Decoder::piece(std::string_view token, bool added) const {
  RegexScratch scratch;
  std::string out = token_bytes(token, added, false, false, scratch);
  for (const JoinedStep& step : joined_steps_) {
    if (const auto* replace = std::get_if<Replace>(&step)) {
      out = replace_literal(out, replace->literal, replace->content);
    }
  }
  return out;
}

void Decoder::run(const Replace& step, const TokenContext&, std::string& token,
                  RegexScratch& scratch) {
  token = step.literal.empty() ? replace_matches(step.pattern, token, step.content, scratch)
                               : replace_literal(token, step.literal, step.content);
}

void Decoder::run(const Strip& step, const TokenContext&, std::string& token, RegexScratch&) {
  std::string_view view = token;
  for (std::size_t i = 0; i < step.start && view.starts_with(step.content); ++i) {
    view.remove_prefix(step.content.size());
  }
  for (std::size_t i = 0; i < step.stop && view.ends_with(step.content); ++i) {
    view.remove_suffix(step.content.size());
  }
  token = std::string(view);
}

void Decoder::run(const Metaspace& step, const TokenContext& context, std::string& token,
                  RegexScratch&) {
  token = replace_literal(token, step.replacement, context.first && step.drops_first ? "" : " ");
}

void Decoder::run(const WordSuffix& step, const TokenContext& context, std::string& token,
                  RegexScratch&) {
  token = replace_literal(token, step.suffix, context.last ? "" : " ");
}

void Decoder::run(const ByteFallback&, const TokenContext&, std::string& token, RegexScratch&) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high >= 0 && low >= 0) token = std::string(1, static_cast<char>(high * 16 + low));
}

void Decoder::run(const ByteLevel&, const TokenContext& context, std::string& token,
                  RegexScratch&) {
  // The content of an added token is text, not symbols; so is a token with a character that is no
  // symbol.
  if (context.added) return;
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = code_point_at(token, i);
    const int byte = symbol_to_byte(c.value);
    if (byte < 0) return;
    bytes += static_cast<char>(byte);
    i += c.length;
  }
  token = std::move(bytes);
}

void DecodeStream::push(std::string_view token, bool added, std::string& out) {
  if (holds_) emit(/*last=*/false, out);
  held_token_ = token;
  held_added_ = added;
  holds_ = true;
  if (!decoder_->sees_last_) emit(/*last=*/false, out);
}

void DecodeStream::emit(bool last, std::string& out) {
  scratch_.start_budget(held_token_.size());
  std::string bytes = decoder_->token_bytes(held_token_, held_added_, first_, last, scratch_);
  if (decoder_->joins_with_spaces_ && !first_) bytes.insert(0, 1, ' ');
  holds_ = false;
  first_ = false;
  join(0, bytes, false, out);
}

void DecodeStream::finish(std::string& out) {
  if (holds_) emit(/*last=*/true, out);
  join(0, "", true, out);
  first_ = true;
  joined_.assign(joined_.size(), {});
}

void DecodeStream::join(std::size_t step, std::string_view text, bool final, std::string& out) {
  if (step == joined_.size()) {
    out += text;
    return;
  }
  joined_[step].held += text;
  const std::string ready = std::visit([&](const auto& s) { return run(s, joined_[step], final); },
                                       decoder_->joined_steps_[step]);
  join(step + 1, ready, final, out);
}

std::string DecodeStream::run(const Decoder::Replace& step, JoinedState& state, bool final) {
  std::string& held = state.held;
  std::size_t begin = 0;  // behind the last match
  for (std::size_t at = held.find(step.literal); at != std::string::npos;
       at = held.find(step.literal, begin)) {
    begin = at + step.literal.size();
  }
  // What may be the beginning of a match waits.
  std::size_t waits = final ? 0 : std::min(held.size() - begin, step.literal.size() - 1);
  while (waits > 0 && held.compare(held.size() - waits, waits, step.literal, 0, waits) != 0) {
    --waits;
  }
  std::string ready = replace_literal(std::string_view(held).substr(0, held.size() - waits),
                                      step.literal, step.content);
  held.erase(0, held.size() - waits);
  return ready;
}

std::string DecodeStream::run(const Decoder::Strip& step, JoinedState& state, bool final) {
  std::string& held = state.held;
  const std::size_t unit = step.content.size();
  while (!state.started) {
    if (state.stripped < step.start && held.starts_with(step.content)) {
      held.erase(0, unit);
      ++state.stripped;
    } else {
      const bool undecided = !final && state.stripped < step.start && held.size() < unit &&
                             step.content.starts_with(held);
      if (undecided) return {};
      state.started = true;
    }
  }
  // The longest end that is made of the character, and perhaps its first bytes, waits.
  std::size_t waits = std::min(held.size(), step.stop * unit + unit - 1);
  if (step.stop == 0) waits = 0;
  for (; waits > 0; --waits) {
    bool repeats = true;
    for (std::size_t i = 0; i < waits && repeats; ++i) {
      repeats = held[held.size() - waits + i] == step.content[i % unit];
    }
    if (repeats) break;
  }
  std::string ready = held.substr(0, held.size() - waits);
  held.erase(0, held.size() - waits);
  if (final) {
    std::string_view rest = held;
    for (std::size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) {
      rest.remove_suffix(unit);
    }
    ready += rest;
    held.clear();
  }
  return ready;
}

}  // namespace adder::text
