#include "checkpoint/config_fields.h"

#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/json_document.h"
#include "core/quote.h"

namespace adder {
namespace {

using nlohmann::json;

// Keeps products of two sizes, and sums of a few of those, far below 2^63.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 26;

}  // namespace

const json* ConfigFields::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigFields::fail_value(std::string_view key, const json& value,
                              std::string_view expected) const {
  fail("{}: {} is {}, expected {}", source_, path(key),
       in_quotes(value.dump(-1, ' ', true, json::error_handler_t::replace)), expected);
}

std::optional<std::int64_t> ConfigFields::size(std::string_view key, std::int64_t least) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  const bool valid = value->is_number_unsigned() &&
                     value->get<std::uint64_t>() >= static_cast<std::uint64_t>(least) &&
                     value->get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxSize);
  if (!valid) fail_value(key, *value, fmt::format("an integer from {} to {}", least, kMaxSize));
  return value->get<std::int64_t>();
}

std::int64_t ConfigFields::required_size(std::string_view key) const {
  const auto value = size(key);
  check(value.has_value(), "{} has no {}, expected a positive integer", source_, path(key));
  return *value;
}

std::optional<bool> ConfigFields::boolean(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) fail_value(key, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigFields::text(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) fail_value(key, *value, "a string");
  return value->get<std::string>();
}

double ConfigFields::number_of(std::string_view key, const json& value) const {
  if (value.is_number()) return value.get<double>();
  const json* word = &value;
  if (value.is_object() && value.size() == 1 && value.contains("__float__")) {
    word = &value["__float__"];
  }
  if (word->is_string()) {
    const auto& text = word->get_ref<const std::string&>();
    if (text == "Infinity" || text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity" || text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  fail_value(key, value, "a number or Infinity");
}

std::optional<double> ConfigFields::number(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  return number_of(key, *value);
}

std::optional<std::pair<float, float>> ConfigFields::limits(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || value->size() != 2) fail_value(key, *value, "a pair of numbers");
  const double low = number_of(key, (*value)[0]);
  const double high = number_of(key, (*value)[1]);
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  if (!(std::abs(low) <= kMaxFloat) || !(low <= high)) {
    fail_value(key, *value, "a finite lower limit that is not above the upper one");
  }
  return std::pair(static_cast<float>(low), high <= kMaxFloat
                                                ? static_cast<float>(high)
                                                : std::numeric_limits<float>::infinity());
}

std::optional<int> ConfigFields::token_id(std::string_view key) const {
  const auto ids = token_ids(key);
  if (ids.empty()) return {};
  if (ids.size() != 1) fail_value(key, *find(key), "one token id");
  return ids[0];
}

std::vector<int> ConfigFields::token_ids(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  std::vector<int> ids;
  const auto add = [&](const json& id) {
    const bool valid = id.is_number_unsigned() &&
                       id.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<int>::max()};
    if (!valid) fail_value(key, *value, "a token id from 0 to 2147483647, or an array of them");
    ids.push_back(id.get<int>());
  };
  if (value->is_array()) {
    for (const json& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

StatedConfig parse_config(std::string_view text, std::string_view source) {
  const json document = parse_json_object(text, source);
  const ConfigFields fields(document, source);
  if (fields.find("model_type") != nullptr) return parse_huggingface_config(fields);
  if (fields.find("d_model") != nullptr) return parse_state_spaces_config(fields);
  fail("{} has neither model_type (Hugging Face) nor d_model (state-spaces), expected one of them",
       source);
}

}  // namespace adder
