#include "tokenizer/json_node.h"

#include <algorithm>

namespace adder::text {
namespace {

constexpr int kMaxDepth = 64;

/// Brackets outside strings; a document that is no JSON at all is left to the parser.
void check_depth(std::string_view text, const std::string& file) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      check(++depth <= kMaxDepth, "{}: values nest more than {} deep at byte {}", file, kMaxDepth,
            i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  check_depth(text, file);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    fail("{}: expected a JSON document, but the parser reports: {}", file, e.what());
  }
}

void JsonNode::fail_with(std::string message) const {
  message = *file_ + ": " + (path_.empty() ? "the document" : path_) + " " + message;
  // Tokens may hold line breaks; a message is one line.
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c >= '\0' && c < ' '; }, ' ');
  throw Error(message);
}

JsonNode JsonNode::at(const std::string& key) const {
  expect_object();
  const auto it = value_->find(key);
  if (it == value_->end()) error("has no member '{}', which is required", key);
  return {*it, path_.empty() ? key : path_ + "." + key, *file_};
}

std::optional<JsonNode> JsonNode::find(const std::string& key) const {
  expect_object();
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonNode(*it, path_.empty() ? key : path_ + "." + key, *file_);
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) error("is of type {}, expected an array", value_->type_name());
  std::vector<JsonNode> out;
  out.reserve(value_->size());
  for (const Json& element : *value_) {
    out.emplace_back(element, fmt::format("{}[{}]", path_, out.size()), *file_);
  }
  return out;
}

const std::string& JsonNode::string() const {
  if (!value_->is_string()) error("is of type {}, expected a string", value_->type_name());
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonNode::integer(std::int64_t low, std::int64_t high) const {
  if (!value_->is_number_integer()) {
    error("is {}, expected an integer", value_->dump(-1, ' ', true).substr(0, 40));
  }
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<std::uint64_t>() > static_cast<std::uint64_t>(high);
  if (too_large || value_->get<std::int64_t>() < low || value_->get<std::int64_t>() > high) {
    error("is {}, expected an integer from {} to {}", value_->dump(), low, high);
  }
  return value_->get<std::int64_t>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) error("is of type {}, expected true or false", value_->type_name());
  return value_->get<bool>();
}

bool JsonNode::boolean(const std::string& key, bool fallback) const {
  const auto node = find(key);
  return node ? node->boolean() : fallback;
}

std::string JsonNode::string(const std::string& key, const std::string& fallback) const {
  const auto node = find(key);
  return node ? node->string() : fallback;
}

void JsonNode::expect_object() const {
  if (!value_->is_object()) error("is of type {}, expected an object", value_->type_name());
}

}  // namespace adder::text
