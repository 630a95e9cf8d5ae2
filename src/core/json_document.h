#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace adder {

/// Parses a JSON object that somebody else wrote. `source` names it in errors ("dir/config.json").
///
/// Python writes numbers that JSON does not have: bare NaN, Infinity and -Infinity are read as the
/// strings "NaN", "Infinity" and "-Infinity". Refused with one adder::Error: text that is no JSON
/// object, invalid UTF-8, a key that appears twice in one object (readers differ in which one
/// wins), and nesting deeper than 64.
nlohmann::json parse_json_object(std::string_view text, std::string_view source);

}  // namespace adder
