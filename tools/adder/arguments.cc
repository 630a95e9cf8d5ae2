#include "arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "backend/make_backend.h"
#include "core/check.h"

namespace adder::cli {
namespace {

/// The whole of `text` as a number, or nothing.
template <typename T>
std::optional<T> number_in(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

/// CLI11 puts the option's name in front of the message.
CLI::Validator validator(std::function<std::string(const std::string&)> problem) {
  CLI::Validator out;
  out.operation([problem = std::move(problem)](std::string& text) { return problem(text); });
  return out;
}

}  // namespace

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  return validator([low, high](const std::string& text) -> std::string {
    const auto value = number_in<std::int64_t>(text);
    if (value && *value >= low && *value <= high) return {};
    const std::string range = high == std::numeric_limits<std::int64_t>::max()
                                  ? fmt::format("of at least {}", low)
                                  : fmt::format("from {} to {}", low, high);
    return fmt::format("found '{}', expected a whole number {}", text, range);
  });
}

CLI::Validator seed_number() {
  return validator([](const std::string& text) -> std::string {
    if (number_in<std::uint64_t>(text)) return {};
    return fmt::format("found '{}', expected a whole number from 0 to {}", text,
                       std::numeric_limits<std::uint64_t>::max());
  });
}

CLI::Validator real_number(double low, double high) {
  return validator([low, high](const std::string& text) -> std::string {
    const auto value = number_in<double>(text);
    // Written so that NaN is refused too.
    if (value && *value >= low && *value <= high) return {};
    return fmt::format("found '{}', expected a number from {} to {}", text, low, high);
  });
}

CLI::Validator one_of(std::vector<std::string> words) {
  return validator([words = std::move(words)](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return {};
    return fmt::format("found '{}', expected {}", text, fmt::join(words, " or "));
  });
}

CLI::Validator device_name() {
  return validator([](const std::string& text) -> std::string {
    if (text == "cpu" || cuda_index(text).value_or(-1) >= 0) return {};
    return fmt::format("found '{}', expected cpu, cuda or cuda:N", text);
  });
}

CLI::Validator token_ids() {
  return validator([](const std::string& text) -> std::string {
    try {
      parse_ids(text);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  });
}

std::vector<int> parse_ids(const std::string& text) {
  constexpr std::string_view kSeparators = ", \t\n\r";
  std::vector<int> ids;
  for (std::size_t begin = 0;;) {
    begin = text.find_first_not_of(kSeparators, begin);
    if (begin == std::string::npos) break;
    const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto id = number_in<int>(word);
    check(id && *id >= 0, "found '{}', expected token ids like 1,2,3", word);
    ids.push_back(*id);
    begin = end;
  }
  check(!ids.empty(), "found no number, expected token ids like 1,2,3");
  return ids;
}

}  // namespace adder::cli
