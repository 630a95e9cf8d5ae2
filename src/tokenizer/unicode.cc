#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace adder::text {
namespace {

/// Bytes of a sequence by its first byte; 0 if no sequence starts so.
std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0;
}

/// Whether `second` may follow `lead`: rules out overlong forms, surrogates and > U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xe0:
      return second >= 0xa0 && second <= 0xbf;
    case 0xed:
      return second >= 0x80 && second <= 0x9f;
    case 0xf0:
      return second >= 0x90 && second <= 0xbf;
    case 0xf4:
      return second >= 0x80 && second <= 0x8f;
    default:
      return (second & 0xc0) == 0x80;
  }
}

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

/// How many bytes at `position` agree with a well-formed sequence of the length that the first one
/// announces (`expected`).
std::size_t matching_bytes(std::string_view text, std::size_t position, std::size_t expected) {
  const std::size_t available = std::min(expected, text.size() - position);
  if (available >= 2 && !second_byte_fits(byte_at(text, position), byte_at(text, position + 1))) {
    return 1;
  }
  for (std::size_t i = 2; i < available; ++i) {
    if ((byte_at(text, position + i) & 0xc0) != 0x80) return i;
  }
  return available;
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t position) {
  const unsigned char lead = byte_at(text, position);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = sequence_length(lead);
  if (length == 0 || matching_bytes(text, position, length) != length) return {kInvalid, 1};
  char32_t value = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i)
    value = (value << 6) | (byte_at(text, position + i) & 63);
  return {value, length};
}

CodePoint code_point_before(std::string_view text, std::size_t position) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, position); ++length) {
    const CodePoint c = code_point_at(text.substr(0, position), position - length);
    if (c.value != kInvalid && c.length == length) return c;
  }
  return {kInvalid, position == 0 ? 0u : 1u};
}

std::size_t valid_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t block = 0;
    if (text.size() - i >= sizeof(block)) {
      std::memcpy(&block, text.data() + i, sizeof(block));
      if ((block & 0x8080808080808080u) == 0) {
        i += sizeof(block);
        continue;
      }
    }
    const CodePoint c = code_point_at(text, i);
    if (c.value == kInvalid) return i;
    i += c.length;
  }
  return i;
}

std::size_t incomplete_suffix(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const std::size_t position = text.size() - back;
    if ((byte_at(text, position) & 0xc0) == 0x80) continue;
    const std::size_t length = sequence_length(byte_at(text, position));
    return length > back && matching_bytes(text, position, length) == back ? back : 0;
  }
  return 0;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | (c >> 6));
    put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xe0 | (c >> 12));
    put(0x80 | ((c >> 6) & 63));
    put(0x80 | (c & 63));
  } else {
    put(0xf0 | (c >> 18));
    put(0x80 | ((c >> 12) & 63));
    put(0x80 | ((c >> 6) & 63));
    put(0x80 | (c & 63));
  }
}

bool is_whitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  if (c > 0x10ffff) return false;
  if (c == 0x200c || c == 0x200d) return true;  // the joiners
  // Letters in circles and squares: symbols by category, alphabetic by property.
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
      (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool starts_normalization_block(char32_t c) {
  return c < 0x300 || (c >= 0x370 && c < 0x483) || (c >= 0x48a && c < 0x530) ||
         (c >= 0x2000 && c < 0x2070) || (c >= 0x2500 && c < 0x2600) ||
         (c >= 0x3000 && c < 0x302a) || (c >= 0x3030 && c < 0x3099) ||
         (c >= 0x309b && c < 0x3100) || (c >= 0x3400 && c < 0xa000) ||
         (c >= 0xac00 && c < 0xd7a4) || (c >= 0xff00 && c < 0xff9e) ||
         (c >= 0x1f300 && c < 0x1fb00);
}

char32_t byte_to_symbol(unsigned char byte) {
  if (byte < 0x21) return 0x100u + byte;
  if (byte < 0x7f) return byte;
  if (byte < 0xa1) return 0x100u + 0x21u + (byte - 0x7fu);
  return byte == 0xad ? 0x143u : byte;
}

int symbol_to_byte(char32_t symbol) {
  if (symbol < 0x100) {
    const auto byte = static_cast<unsigned char>(symbol);
    return byte_to_symbol(byte) == symbol ? byte : -1;
  }
  if (symbol < 0x121) return static_cast<int>(symbol - 0x100);
  if (symbol < 0x143) return static_cast<int>(symbol - 0x121 + 0x7f);
  return symbol == 0x143 ? 0xad : -1;
}

void append_byte_symbols(std::string& out, std::string_view bytes) {
  struct Symbol {
    char bytes[2];
    unsigned char length;
  };
  static const std::array<Symbol, 256> table = [] {
    std::array<Symbol, 256> symbols{};
    for (int b = 0; b < 256; ++b) {
      std::string s;
      append_utf8(s, byte_to_symbol(static_cast<unsigned char>(b)));
      symbols[b] = {{s[0], s.size() > 1 ? s[1] : '\0'}, static_cast<unsigned char>(s.size())};
    }
    return symbols;
  }();
  const std::size_t begin = out.size();
  out.resize(begin + 2 * bytes.size());
  char* cursor = out.data() + begin;
  for (const char c : bytes) {
    const Symbol& symbol = table[static_cast<unsigned char>(c)];
    std::memcpy(cursor, symbol.bytes, 2);
    cursor += symbol.length;
  }
  out.resize(static_cast<std::size_t>(cursor - out.data()));
}

}  // namespace adder::text
