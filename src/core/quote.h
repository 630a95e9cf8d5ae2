#pragma once

#include <string>
#include <string_view>

namespace adder {

/// Somebody else's text made fit for a one-line error message: in double quotes, with control
/// characters, quotes and backslashes escaped, and cut after 120 bytes.
std::string in_quotes(std::string_view text);

}  // namespace adder
