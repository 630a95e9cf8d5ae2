#include "progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "output.h"
#include "process.h"

namespace adder::cli {
namespace {

constexpr auto kPatience = std::chrono::milliseconds(400);
constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr int kBarWidth = 30;

}  // namespace

Progress::Progress(std::string label)
    : label_(std::move(label)), enabled_(stderr_is_terminal()), next_(Clock::now() + kPatience) {}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::update(double fraction, const std::string& note) {
  if (!enabled_ || Clock::now() < next_) return;
  next_ = Clock::now() + kInterval;
  shown_ = true;
  std::string bar;
  if (fraction >= 0) {
    const double done = std::clamp(fraction, 0.0, 1.0);
    const int filled = static_cast<int>(done * kBarWidth);
    bar = fmt::format(" [{:#<{}}{:.<{}}] {:3.0f}%", "", filled, "", kBarWidth - filled, 100 * done);
  }
  fmt::print(stderr, "\r{}{}{}{}\x1b[K", label_, bar, note.empty() ? "" : " ", note);
  std::fflush(stderr);
}

std::string token_note(std::int64_t ntokens, double seconds) {
  std::string note = grouped(ntokens) + " tokens";
  if (seconds > 0) {
    note += fmt::format(", {} tokens/s", human_number(static_cast<double>(ntokens) / seconds));
  }
  return note;
}

}  // namespace adder::cli
