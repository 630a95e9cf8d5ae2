#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "tokenizer/unicode.h"

namespace adder::text {
namespace {

/// Characters that a form leaves alone and before which a block starts: a run of them followed by
/// another, or by the end, is already in form.
bool is_stable(char32_t c, NormalizationForm form) {
  if (c < 0x80) return true;
  if (form != NormalizationForm::nfc) return false;
  return c < 0x300 || (c >= 0x400 && c < 0x483) || (c >= 0x2010 && c < 0x2028) ||
         (c >= 0x3041 && c < 0x3097) || (c >= 0x30a1 && c < 0x30fb) ||
         (c >= 0x4e00 && c < 0xa000) || (c >= 0xac00 && c < 0xd7a4);
}

void append_normalized(std::string& out, std::string_view block, NormalizationForm form) {
  int options = UTF8PROC_STABLE;
  if (form == NormalizationForm::nfkc || form == NormalizationForm::nfkd)
    options |= UTF8PROC_COMPAT;
  const bool compose = form == NormalizationForm::nfc || form == NormalizationForm::nfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(block.data()),
                   static_cast<utf8proc_ssize_t>(block.size()), &mapped,
                   static_cast<utf8proc_option_t>(options));
  check(length >= 0, "tokenizer: cannot normalize {} bytes of text: {}", block.size(),
        utf8proc_errmsg(length));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
}

/// The first position that is not known to be in form, less the character before it, which a
/// combining mark there would change.
std::size_t stable_prefix(std::string_view text, std::size_t begin, NormalizationForm form) {
  std::size_t last = begin;
  for (std::size_t i = begin; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (!is_stable(c.value, form)) return starts_normalization_block(c.value) ? i : last;
    last = i;
    i += c.length;
  }
  return text.size();
}

}  // namespace

std::string normalize(std::string_view text, NormalizationForm form) {
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t stable = stable_prefix(text, begin, form);
    out.append(text.substr(begin, stable - begin));
    if (stable == text.size()) break;
    // A block that needs work lasts until the next character that starts another and is stable.
    std::size_t end = stable + code_point_at(text, stable).length;
    while (end < text.size()) {
      const CodePoint c = code_point_at(text, end);
      if (starts_normalization_block(c.value) && is_stable(c.value, form)) break;
      end += c.length;
    }
    append_normalized(out, text.substr(stable, end - stable), form);
    begin = end;
  }
  return out;
}

PatternText::PatternText(const JsonNode& component) {
  const JsonNode pattern = component.at("pattern");
  if (const auto text = pattern.find("String")) {
    literal = text->string();
    if (literal.empty()) text->error("is empty, expected at least one character");
    regex = Regex::quote(literal);
  } else {
    regex = pattern.at("Regex").string();
  }
}

std::string replace_matches(const Regex& pattern, std::string_view text, std::string_view content,
                            RegexScratch& scratch) {
  std::string out;
  std::size_t copied = 0;
  std::size_t from = 0;
  std::size_t last_end = ~std::size_t{0};
  while (from <= text.size()) {
    const Regex::Match match = pattern.search(text, from, true, scratch);
    if (match.status != Regex::Status::match) break;
    from = match.end;
    if (match.begin == match.end) {
      from += from < text.size() ? code_point_at(text, from).length : 1;
      if (match.end == last_end) continue;  // no empty match right after another
    }
    if (match.begin < copied) continue;
    last_end = match.end;
    out.append(text.substr(copied, match.begin - copied)).append(content);
    copied = match.end;
  }
  return out.append(text.substr(copied));
}

Normalizer::Normalizer(const JsonNode& node) { add(node); }

void Normalizer::add(const JsonNode& node) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    for (const JsonNode& step : node.at("normalizers").elements()) add(step);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    const bool compatible = type[2] == 'K';
    const bool composed = type.back() == 'C';
    steps_.emplace_back(composed ? (compatible ? NormalizationForm::nfkc : NormalizationForm::nfc)
                                 : (compatible ? NormalizationForm::nfkd : NormalizationForm::nfd));
    composes_ = true;
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{node.at("strip_left").boolean(), node.at("strip_right").boolean()});
    sees_whole_section_ = true;
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{node.at("prepend").string()});
  } else if (type == "Replace") {
    add_replace(node);
  } else {
    node.error(
        "is a normalizer of type '{}', expected NFC, NFD, NFKC, NFKD, Lowercase, Strip, Replace, "
        "Prepend or Sequence",
        type);
  }
}

void Normalizer::add_replace(const JsonNode& node) {
  const PatternText pattern(node);
  Replace step{Regex(pattern.regex, node.file() + ": " + node.path() + ".pattern"), pattern.literal,
               node.at("content").string()};
  // Portions can be replaced one by one if a match is a single character, and normalized later if
  // what replaces it starts a block.
  const bool single =
      !step.literal.empty() && code_point_at(step.literal, 0).length == step.literal.size();
  const bool starts_block =
      !step.content.empty() && starts_normalization_block(code_point_at(step.content, 0).value);
  if (!single || !starts_block) sees_whole_section_ = true;
  steps_.emplace_back(std::move(step));
}

void Normalizer::run(const NormalizationForm& form, std::string& text, RegexScratch&) {
  text = normalize(text, form);
}

void Normalizer::run(const Lowercase&, std::string& text, RegexScratch&) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (c.value == 0x130) {
      out += "i\xcc\x87";  // the one character whose lower case is two
    } else {
      append_utf8(out,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    }
    i += c.length;
  }
  text = std::move(out);
}

void Normalizer::run(const Strip& step, std::string& text, RegexScratch&) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (step.left && begin < end) {
    const CodePoint c = code_point_at(text, begin);
    if (!is_whitespace(c.value)) break;
    begin += c.length;
  }
  while (step.right && end > begin) {
    const CodePoint c = code_point_before(text, end);
    if (!is_whitespace(c.value)) break;
    end -= c.length;
  }
  text = text.substr(begin, end - begin);
}

void Normalizer::run(const Replace& step, std::string& text, RegexScratch& scratch) {
  if (step.literal.empty()) {
    text = replace_matches(step.pattern, text, step.content, scratch);
    return;
  }
  std::string out;
  std::size_t copied = 0;
  for (std::size_t at = text.find(step.literal); at != std::string::npos;
       at = text.find(step.literal, copied)) {
    out.append(text, copied, at - copied).append(step.content);
    copied = at + step.literal.size();
  }
  text = out.append(text, copied);
}

void Normalizer::run(const Prepend& step, std::string& text, RegexScratch&) {
  if (!text.empty()) text.insert(0, step.text);
}

std::string_view Normalizer::apply(std::string_view text, bool begins_section,
                                   RegexScratch& scratch, std::string& storage) const {
  if (steps_.empty()) return text;
  if (steps_.size() == 1) {  // text that is in form already is not copied
    const auto* form = std::get_if<NormalizationForm>(&steps_[0]);
    if (form != nullptr && stable_prefix(text, 0, *form) == text.size()) return text;
  }
  storage = text;
  for (const Step& step : steps_) {
    if (std::holds_alternative<Prepend>(step) && !begins_section) continue;
    std::visit([&](const auto& s) { run(s, storage, scratch); }, step);
  }
  return storage;
}

std::size_t Normalizer::safe_cut(std::string_view text) const {
  if (sees_whole_section_) return 0;
  if (!composes_) return text.size();
  for (std::size_t cut = text.size(); cut > 0;) {
    const CodePoint c = code_point_before(text, cut);
    cut -= c.length;
    if (starts_normalization_block(c.value)) return cut;
  }
  return 0;
}

}  // namespace adder::text
