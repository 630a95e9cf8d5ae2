#include "output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/atomic_file.h"
#include "core/check.h"

namespace adder::cli {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      struct pollfd ready {
        STDOUT_FILENO, POLLOUT, 0
      };
      ::poll(&ready, 1, -1);
    } else if (errno == EPIPE) {
      throw OutputClosed{};
    } else {
      check(errno == EINTR, "standard output: {}", std::strerror(errno));
    }
  }
}

}  // namespace

void Output::write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= kBufferBytes) flush();
}

void Output::flush() {
  // Emptied first: after a failure nothing is written twice.
  const std::string text = std::exchange(buffer_, {});
  write_all(text);
}

void print(std::string_view text) { write_all(text); }

std::string dump_json(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_json(const Json& value) { print(dump_json(value)); }

void save_json(const std::string& path, const Json& value) {
  if (path == "-") return print_json(value);
  AtomicFile file(path);
  file.write(dump_json(value));
  file.commit();
}

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} bytes", bytes)
                   : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string human_number(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 1000) return grouped(std::llround(value));
  if (magnitude >= 100) return fmt::format("{:.0f}", value);
  if (magnitude >= 10) return fmt::format("{:.1f}", value);
  if (magnitude >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3g}", value);
}

std::string human_seconds(double seconds) {
  if (seconds >= 1) return human_number(seconds) + " s";
  if (seconds >= 1e-3) return human_number(seconds * 1e3) + " ms";
  if (seconds >= 1e-6) return human_number(seconds * 1e6) + " us";
  return human_number(seconds * 1e9) + " ns";
}

}  // namespace adder::cli
