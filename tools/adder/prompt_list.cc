#include "prompt_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "core/json_document.h"
#include "text_input.h"

namespace adder::cli {
namespace {

bool is_token_id(const nlohmann::json& value) {
  return value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int>::max();
}

Json prompt_in(std::string_view line, const std::string& source) {
  const nlohmann::json object = parse_json_object(line, source);
  const auto found = object.find("prompt");
  check(found != object.end(), "{}: there is no \"prompt\", expected a text or a list of token ids",
        source);
  const bool is_list = found->is_array() && std::all_of(found->begin(), found->end(), is_token_id);
  check(found->is_string() || is_list,
        "{}: \"prompt\" is neither a text nor a list of token ids, expected one of them", source);
  return *found;
}

}  // namespace

std::vector<Prompt> prompts_of(const std::vector<std::string>& texts) {
  std::vector<Prompt> out;
  out.reserve(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    out.push_back({texts[i], fmt::format("prompt {}", i)});
  }
  return out;
}

std::vector<Prompt> read_prompts(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  std::string text;
  TextReader reader = TextReader::of_file(path);
  for (std::string piece; reader.next(piece);) text += piece;
  std::vector<Prompt> out;
  std::optional<bool> is_json;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (!is_json) is_json = line.front() == '{';
    std::string source = fmt::format("{}, line {}", name, number);
    Json value = *is_json ? prompt_in(line, source) : Json(std::string(line));
    out.push_back({std::move(value), std::move(source)});
  }
  check(!out.empty(), "{}: it holds no prompt, expected at least one line", name);
  return out;
}

}  // namespace adder::cli
