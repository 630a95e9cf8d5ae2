#pragma once

// Reading tokenizer.json with errors that name the file and the key.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"

namespace adder::text {

using Json = nlohmann::json;

/// Parses a document; `file` names it in errors. Values may nest 64 deep.
Json parse_json(std::string_view text, const std::string& file);

/// A value and where it stands ("model.merges[3]").
class JsonNode {
 public:
  JsonNode(const Json& value, std::string path, const std::string& file)
      : value_(&value), path_(std::move(path)), file_(&file) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  const std::string& file() const { return *file_; }

  /// Throws "FILE: PATH ...".
  template <typename... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    fail_with(fmt::format(format, std::forward<Args>(args)...));
  }

  /// A required member of an object.
  JsonNode at(const std::string& key) const;
  /// A member, or nothing if it is missing or null.
  std::optional<JsonNode> find(const std::string& key) const;
  /// The elements of an array.
  std::vector<JsonNode> elements() const;

  const std::string& string() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  bool boolean() const;

  bool boolean(const std::string& key, bool fallback) const;
  std::string string(const std::string& key, const std::string& fallback) const;

  void expect_object() const;

 private:
  [[noreturn]] void fail_with(std::string message) const;

  const Json* value_;
  std::string path_;
  const std::string* file_;
};

}  // namespace adder::text
