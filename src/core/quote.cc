#include "core/quote.h"

#include <fmt/format.h>

namespace adder {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxBytes = 120;
  std::string out = "\"";
  for (char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + (text.size() > kMaxBytes ? "...\"" : "\"");
}

}  // namespace adder
