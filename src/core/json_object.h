#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

namespace adder {

/// Strict access to a JSON object that somebody else wrote: each key is asked for by type and
/// range, and a key that was not asked for is an error in the end. Errors say where the object
/// stands, the key, what was found and what was expected.
class JsonObject {
 public:
  /// `where` completes errors: "tuning.json: entry 3: shape". Throws unless `value` is an object;
  /// it must outlive this.
  JsonObject(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  /// Whether the key is there; it counts as asked for.
  bool has(std::string_view key);

  // Each throws if the key is missing or holds something else.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high);
  bool boolean(std::string_view key);
  std::string text(std::string_view key);
  const nlohmann::json& object(std::string_view key);
  const nlohmann::json& array(std::string_view key);

  /// Throws if the object has a key that nothing asked for.
  void done() const;

  /// Throws: the value under `key` is not what was expected.
  [[noreturn]] void fail_value(std::string_view key, std::string_view expected) const;

 private:
  const nlohmann::json& require(std::string_view key, std::string_view expected);

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace adder
