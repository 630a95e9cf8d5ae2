#include "core/json_document.h"

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

/// The bare word NaN, Infinity or -Infinity that `text` starts with, or nothing.
std::string_view bare_number(std::string_view text) {
  constexpr std::array<std::string_view, 3> kWords = {"-Infinity", "Infinity", "NaN"};
  for (std::string_view word : kWords) {
    if (text.starts_with(word)) return word;
  }
  return {};
}

/// Puts quotes around bare words for numbers that stand outside of strings.
std::string with_quoted_numbers(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view word = in_string ? std::string_view() : bare_number(text.substr(i));
    if (!word.empty()) {
      out.append("\"").append(word).append("\"");
      i += word.size();
      continue;
    }
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      out.push_back(text[i++]);
    else if (text[i] == '"')
      in_string = !in_string;
    out.push_back(text[i++]);
  }
  return out;
}

/// Follows the parser and refuses what it would accept: deep nesting and repeated keys.
class Supervisor {
 public:
  explicit Supervisor(std::string_view source) : source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        check(depth < kMaxDepth, "{} nests deeper than {} levels, expected at most that many",
              source_, kMaxDepth);
        keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        check(keys_.back().insert(key).second, "{} has the key {} twice in one object", source_,
              in_quotes(key));
        break;
      }
      case json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  std::string_view source_;
  std::vector<std::set<std::string>> keys_;  // one per open object or array
};

}  // namespace

nlohmann::json parse_json_object(std::string_view text, std::string_view source) {
  const std::string prepared = with_quoted_numbers(text);
  try {
    Supervisor supervisor(source);
    json document = json::parse(prepared, std::ref(supervisor));
    check(document.is_object(), "{} holds a JSON {}, expected an object", source,
          document.type_name());
    return document;
  } catch (const json::parse_error& error) {
    fail("{} is not valid JSON: the parser stopped at byte {}", source, error.byte);
  } catch (const json::exception&) {
    fail("{} is not valid JSON: it has a number out of range", source);
  }
}

}  // namespace adder
