#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace adder::cli {

/// A progress bar on standard error, shown only on a terminal and only once the work has taken a
/// while. The line is wiped when the object goes.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `fraction` done, in [0, 1], or negative where the end is unknown; `note` follows the bar.
  void update(double fraction, const std::string& note = {});

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool enabled_;
  Clock::time_point next_;
  bool shown_ = false;
};

/// Seconds since it was made.
class StopWatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// "12,288 tokens, 1,530 tokens/s": the note of work that is counted in tokens.
std::string token_note(std::int64_t ntokens, double seconds);

}  // namespace adder::cli
