#pragma once

// UTF-8 and the few Unicode properties that the tokenizer itself needs; patterns use PCRE2's.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace adder::text {

inline constexpr char32_t kInvalid = 0xffffffff;

struct CodePoint {
  char32_t value;      ///< kInvalid for a byte that belongs to no well-formed sequence
  std::size_t length;  ///< bytes; 1 when invalid
};

/// The code point at `position` < text.size(). Overlong forms, surrogates and values above
/// U+10FFFF are not well-formed.
CodePoint code_point_at(std::string_view text, std::size_t position);

/// The code point that ends right before `position`; kInvalid at the start of the text.
CodePoint code_point_before(std::string_view text, std::size_t position);

/// The length of the longest well-formed prefix.
std::size_t valid_prefix(std::string_view text);

/// How many of the last bytes (0 to 3) begin a sequence that more bytes could complete.
std::size_t incomplete_suffix(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

/// The property White_Space.
bool is_whitespace(char32_t c);
/// What `\w` means in Unicode regular expressions: Alphabetic, M, Nd, Pc and the joiners.
bool is_word(char32_t c);

/// Normalization treats the text before such a character and the text from it on independently, in
/// all four forms: its decomposition starts with a starter that composes with nothing before it.
/// Known for Latin, Cyrillic, Greek, general punctuation, CJK and Hangul syllables; false for the
/// rest, which is always safe.
bool starts_normalization_block(char32_t c);

/// Byte-level vocabularies write every byte as one printable character: itself if it is printable
/// in Latin-1, otherwise U+0100 onwards.
char32_t byte_to_symbol(unsigned char byte);
/// The byte that a symbol stands for, or -1.
int symbol_to_byte(char32_t symbol);
/// Appends the symbols of all bytes, in UTF-8.
void append_byte_symbols(std::string& out, std::string_view bytes);

}  // namespace adder::text
