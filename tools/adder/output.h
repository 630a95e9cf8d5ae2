#pragma once

// Standard output, with its failures noticed: a full disk is an error, a reader that has gone away
// (`adder ... | head -c 1`) is a reason to stop quietly.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace adder::cli {

using Json = nlohmann::ordered_json;

/// Thrown when nobody reads standard output any more.
struct OutputClosed {};

/// Collects text and writes it to standard output. Nothing is written without a `flush`, an
/// explicit one or that of a full buffer.
class Output {
 public:
  void write(std::string_view text);
  void flush();

 private:
  std::string buffer_;
};

/// Writes and flushes `text` as it is.
void print(std::string_view text);

/// Writes `value` and a newline, indented; bytes that are not UTF-8 appear as U+FFFD.
void print_json(const Json& value);
std::string dump_json(const Json& value);
/// The same on one line.
std::string json_line(const Json& value);

/// Writes `value` to a file, or to standard output if `path` is "-".
void save_json(const std::string& path, const Json& value);

/// "1,234,567".
std::string grouped(std::int64_t value);
/// "18.5 MiB".
std::string human_bytes(double bytes);
/// Three significant digits: "1234", "12.3", "0.0123".
std::string human_number(double value);
/// "1.23 ms".
std::string human_seconds(double seconds);

}  // namespace adder::cli
