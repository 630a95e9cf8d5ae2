#pragma once

// Typed access to the fields of somebody else's JSON configuration.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/stated_config.h"

namespace adder {

/// The fields of one JSON object. A key that is absent or null is missing.
class ConfigFields {
 public:
  /// `prefix` is put before keys in errors, for nested objects: "ssm_cfg.".
  ConfigFields(const nlohmann::json& object, std::string_view source, std::string prefix = "")
      : object_(object), source_(source), prefix_(std::move(prefix)) {}

  std::string_view source() const { return source_; }
  const nlohmann::json& object() const { return object_; }
  /// The key as errors name it.
  std::string path(std::string_view key) const { return prefix_ + std::string(key); }

  /// The value, or null when it is missing.
  const nlohmann::json* find(std::string_view key) const;

  /// A size: an integer from `least` to 2^26. Throws when it is something else.
  std::optional<std::int64_t> size(std::string_view key, std::int64_t least = 1) const;
  /// The same, but missing is an error.
  std::int64_t required_size(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  /// A number, in any spelling of infinity that is around: a bare word, a string, or
  /// {"__float__": "Infinity"}.
  std::optional<double> number(std::string_view key) const;
  /// A pair of numbers [low, high] with a finite low ≤ high.
  std::optional<std::pair<float, float>> limits(std::string_view key) const;
  /// A token id: an integer from 0 to 2^31 - 1.
  std::optional<int> token_id(std::string_view key) const;
  /// A token id or an array of them; missing is an empty list.
  std::vector<int> token_ids(std::string_view key) const;

  Stated<std::int64_t> stated_size(std::string_view key) const { return {path(key), size(key)}; }
  Stated<bool> stated_boolean(std::string_view key) const { return {path(key), boolean(key)}; }

  /// Fails: the value under `key` is not what was expected.
  [[noreturn]] void fail_value(std::string_view key, const nlohmann::json& value,
                               std::string_view expected) const;

 private:
  double number_of(std::string_view key, const nlohmann::json& value) const;

  const nlohmann::json& object_;
  std::string_view source_;
  std::string prefix_;
};

/// The two dialects. `fields` is the whole document.
StatedConfig parse_huggingface_config(const ConfigFields& fields);
StatedConfig parse_state_spaces_config(const ConfigFields& fields);

}  // namespace adder
