#include "core/json_object.h"

#include <utility>

#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

using nlohmann::json;

/// The number, where it is an integer of 64 bits.
bool is_int64(const json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || std::in_range<std::int64_t>(value.get<std::uint64_t>()));
}

}  // namespace

JsonObject::JsonObject(const json& value, std::string where)
    : object_(value), where_(std::move(where)) {
  check(object_.is_object(), "{} is a JSON {}, expected an object", where_, object_.type_name());
}

bool JsonObject::has(std::string_view key) {
  asked_.emplace(key);
  return object_.find(key) != object_.end();
}

const json& JsonObject::require(std::string_view key, std::string_view expected) {
  check(has(key), "{} has no {}, expected {}", where_, key, expected);
  return *object_.find(key);
}

std::int64_t JsonObject::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  const json& value = require(key, expected);
  const bool valid =
      is_int64(value) && value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
  if (!valid) fail_value(key, expected);
  return value.get<std::int64_t>();
}

bool JsonObject::boolean(std::string_view key) {
  const json& value = require(key, "true or false");
  if (!value.is_boolean()) fail_value(key, "true or false");
  return value.get<bool>();
}

std::string JsonObject::text(std::string_view key) {
  const json& value = require(key, "a string");
  if (!value.is_string()) fail_value(key, "a string");
  return value.get<std::string>();
}

const json& JsonObject::object(std::string_view key) {
  const json& value = require(key, "an object");
  if (!value.is_object()) fail_value(key, "an object");
  return value;
}

const json& JsonObject::array(std::string_view key) {
  const json& value = require(key, "an array");
  if (!value.is_array()) fail_value(key, "an array");
  return value;
}

void JsonObject::done() const {
  for (const auto& item : object_.items()) {
    check(asked_.contains(item.key()), "{} has the key {}, expected no such key", where_,
          in_quotes(item.key()));
  }
}

void JsonObject::fail_value(std::string_view key, std::string_view expected) const {
  const std::string found = object_.find(key)->dump(-1, ' ', true, json::error_handler_t::replace);
  fail("{}: {} is {}, expected {}", where_, key, in_quotes(found), expected);
}

}  // namespace adder
