#pragma once

// What the command line asks of the operating system about its own process.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace adder::cli {

/// Seconds since the program was started (since its static initialization, to be exact).
double seconds_since_start();
/// Processor time that all threads have taken so far.
double cpu_seconds();

/// The most physical memory this process has held so far, and what it holds now.
std::int64_t peak_rss_bytes();
std::int64_t current_rss_bytes();

/// The file this program runs from, or an empty path where the system does not say.
std::filesystem::path executable_path();

/// Opens /dev/null for each of the three standard streams that the caller had closed, so that no
/// file opened later takes its place, and turns writes to a pipe without a reader into errors.
void prepare_standard_streams();

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

/// While it lives, the first SIGINT or SIGTERM is only noted, so that the command can end its line
/// and save its state; a second one ends the process as usual.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  /// What a shell expects of a command that a signal ended: 128 + its number.
  static int exit_code();
};

}  // namespace adder::cli
