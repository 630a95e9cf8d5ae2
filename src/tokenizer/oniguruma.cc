#include "tokenizer/oniguruma.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "core/check.h"

namespace adder::text {
namespace {

// What Oniguruma takes for a word: superscripts and fractions count in Latin-1 alone.
constexpr std::string_view kWordSet =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

/// Properties of more than two letters that are no scripts.
bool is_binary_property(std::string_view name) {
  constexpr std::array<std::string_view, 17> kNames = {
      "Any",       "ASCII",       "Alphabetic",  "White_Space",        "Lowercase",
      "Uppercase", "Emoji",       "Ideographic", "Emoji_Presentation", "Extended_Pictographic",
      "Dash",      "Diacritic",   "Math",        "ID_Start",           "ID_Continue",
      "XID_Start", "XID_Continue"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& context)
      : in_(pattern), context_(context) {}

  std::string run() {
    while (position_ < in_.size()) {
      const char c = in_[position_];
      if (c == '\\') {
        begin_atom();
        escape(/*in_set=*/false);
      } else if (c == '[') {
        begin_atom();
        set();
      } else if (c == '(') {
        groups_.push_back(out_.size());
        open_group();
      } else if (c == ')') {
        if (groups_.empty()) unsupported("an unmatched ')'");
        atom_ = groups_.back();
        groups_.pop_back();
        copy(1);
      } else if (c == '{' && interval_length() > 0) {
        interval();
      } else {
        if (std::string_view("*+?|^$").find(c) == std::string_view::npos) begin_atom();
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) const {
    fail(
        "{} is '{}' with {} at offset {}, which is not supported: expected the common part of "
        "Oniguruma's and Perl's syntax",
        context_, in_, what, position_);
  }

  void begin_atom() { atom_ = out_.size(); }
  void copy(std::size_t n) {
    out_ += in_.substr(position_, n);
    position_ += n;
  }
  void replace(std::size_t n, std::string_view with) {
    out_ += with;
    position_ += n;
  }
  char peek(std::size_t offset) const {
    return position_ + offset < in_.size() ? in_[position_ + offset] : '\0';
  }

  void escape(bool in_set) {
    switch (peek(1)) {
      case 's':
        return replace(2, "\\p{White_Space}");
      case 'S':
        return replace(2, "\\P{White_Space}");
      case 'h':
        return replace(2, in_set ? "0-9a-fA-F" : "[0-9a-fA-F]");
      case 'w':
        out_ += in_set ? "" : "[";
        out_ += kWordSet;
        return replace(2, in_set ? "" : "]");
      case 'W':
      case 'H':
        if (in_set) unsupported("a negated class inside a set");
        if (peek(1) == 'H') return replace(2, "[^0-9a-fA-F]");
        out_ += "[^";
        out_ += kWordSet;
        return replace(2, "]");
      case 'b':
      case 'B':
        if (in_set) return copy(2);  // a backspace in both
        return word_boundary();
      case 'u': {
        const std::string_view digits = in_.substr(position_ + 2, 4);
        for (const char d : digits) {
          if (std::isxdigit(static_cast<unsigned char>(d)) == 0) unsupported("an incomplete '\\u'");
        }
        if (digits.size() != 4) unsupported("an incomplete '\\u'");
        out_ += "\\x{";
        out_ += digits;
        return replace(6, "}");
      }
      case 'Q':
      case 'E':
        // Quoting in Perl; plain letters here.
        return replace(2, in_.substr(position_ + 1, 1));
      case 'C':
      case 'M':
      case 'c':
      case 'O':
      case 'R':
      case 'X':
      case 'y':
      case 'Y':
      case 'g':
        unsupported("an escape whose meaning differs");
      case 'p':
      case 'P':
        return property();
      case 'x': {
        // Braces belong to the escape.
        const std::size_t end = peek(2) == '{' ? in_.find('}', position_) : std::string_view::npos;
        return copy(end == std::string_view::npos ? 2 : end + 1 - position_);
      }
      case '\0':
        unsupported("a trailing backslash");
      default:
        return copy(2);
    }
  }

  /// `\p{Han}` is the script itself, which PCRE2 spells `\p{sc:Han}`.
  void property() {
    const std::size_t end = peek(2) == '{' ? in_.find('}', position_) : std::string_view::npos;
    if (end == std::string_view::npos) return copy(2);
    std::string_view name = in_.substr(position_ + 3, end - position_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const bool script = name.size() > 2 && name.find_first_of(":=") == std::string_view::npos &&
                        !is_binary_property(name);
    replace(end + 1 - position_,
            fmt::format("\\{}{{{}{}{}}}", peek(1), negated ? "^" : "", script ? "sc:" : "", name));
  }

  void word_boundary() {
    const std::string w = fmt::format("[{}]", kWordSet);
    const bool negated = peek(1) == 'B';
    const char next_inside = negated ? '=' : '!';
    const char next_outside = negated ? '!' : '=';
    replace(2,
            fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", w, next_inside, next_outside));
  }

  void set() {
    copy(1);
    if (peek(0) == '^') copy(1);
    bool first = true;
    while (position_ < in_.size()) {
      const char c = in_[position_];
      if (c == ']' && !first) return copy(1);
      if (c == '[') unsupported("a set or POSIX bracket inside a set");
      if (c == '&' && peek(1) == '&') unsupported("an intersection of sets");
      if (c == '\\') {
        escape(/*in_set=*/true);
      } else {
        copy(1);
      }
      first = false;
    }
    unsupported("a set without its ']'");
  }

  /// After '(': the kind of group and its options.
  void open_group() {
    copy(1);
    if (peek(0) == '*') unsupported("a '(*' verb");
    if (peek(0) != '?') return;
    copy(1);
    const char kind = peek(0);
    if (kind == '<' || kind == '=' || kind == '!' || kind == ':' || kind == '>') return copy(1);
    if (kind == '#') {
      const std::size_t end = in_.find(')', position_);
      return copy(end == std::string_view::npos ? in_.size() - position_ : end - position_);
    }
    for (; peek(0) != ':' && peek(0) != ')'; ++position_) {
      switch (peek(0)) {
        case 'i':
        case '-':
          out_ += peek(0);
          break;
        case 'm':
          out_ += 's';
          break;
        default:
          unsupported("a group option other than i and m");
      }
    }
    if (peek(0) == ':') copy(1);
  }

  /// The length of "{n}", "{n,}", "{n,m}" or "{,m}" here; 0 if this is a plain brace.
  std::size_t interval_length() const {
    std::size_t i = 1;
    std::size_t ndigits = 0;
    for (; std::isdigit(static_cast<unsigned char>(peek(i))) != 0; ++i) ++ndigits;
    if (peek(i) == ',') {
      for (++i; std::isdigit(static_cast<unsigned char>(peek(i))) != 0; ++i) ++ndigits;
    }
    return peek(i) == '}' && ndigits > 0 ? i + 1 : 0;
  }

  void interval() {
    const std::size_t length = interval_length();
    const bool no_minimum = peek(1) == ',';
    std::string text =
        fmt::format("{{{}{}", no_minimum ? "0" : "", in_.substr(position_ + 1, length - 1));
    position_ += length;
    if (peek(0) == '+') {  // a repeated repetition, not a possessive one
      out_.insert(atom_, "(?:");
      text += ")";
    }
    out_ += text;
  }

  std::string_view in_;
  const std::string& context_;
  std::string out_;
  std::size_t position_ = 0;
  std::size_t atom_ = 0;  ///< where the latest atom starts in out_
  std::vector<std::size_t> groups_;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& context) {
  return Translator(pattern, context).run();
}

}  // namespace adder::text
