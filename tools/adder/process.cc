#include "process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <initializer_list>
#include <system_error>

namespace adder::cli {
namespace {

const std::chrono::steady_clock::time_point kStart = std::chrono::steady_clock::now();

volatile std::sig_atomic_t caught_signal = 0;

void note_signal(int signal) { caught_signal = signal; }

void set_handler(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

double seconds_since_start() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kStart).count();
}

double cpu_seconds() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::int64_t peak_rss_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

std::int64_t current_rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  if (!(statm >> total_pages >> resident_pages)) return peak_rss_bytes();
  return resident_pages * sysconf(_SC_PAGESIZE);
}

std::filesystem::path executable_path() {
  std::error_code error;
  std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : path;
}

void prepare_standard_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() takes the lowest free number, which is this one.
    if (fcntl(descriptor, F_GETFD) == -1) (void)open("/dev/null", O_RDWR);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO) != 0; }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

InterruptGuard::InterruptGuard() {
  caught_signal = 0;
  // SA_RESETHAND lets the second signal through; without SA_RESTART a blocked read returns.
  set_handler(SIGINT, note_signal, SA_RESETHAND);
  set_handler(SIGTERM, note_signal, SA_RESETHAND);
}

InterruptGuard::~InterruptGuard() {
  set_handler(SIGINT, SIG_DFL, 0);
  set_handler(SIGTERM, SIG_DFL, 0);
}

bool InterruptGuard::interrupted() { return caught_signal != 0; }

int InterruptGuard::exit_code() { return 128 + caught_signal; }

}  // namespace adder::cli
