#include "bench/device_benchmark.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cuda/device.h"
#include "cuda/timing.h"

namespace adder::bench {
namespace {

constexpr std::size_t kLeastReplays = 5;
constexpr std::size_t kMostReplays = 2000;

// Per-call percentiles of replays of `calls` calls each.
Timing timing_of(std::vector<double> replays_s, int calls) {
  std::sort(replays_s.begin(), replays_s.end());
  const auto at = [&](double fraction) {
    const double place = fraction * static_cast<double>(replays_s.size() - 1);
    return replays_s[static_cast<std::size_t>(place)] / calls;
  };
  return {.median_s = at(0.5),
          .p10_s = at(0.1),
          .p90_s = at(0.9),
          .calls = calls * static_cast<std::int64_t>(replays_s.size())};
}

Timing per_call(Timing timing, int calls) {
  return {.median_s = timing.median_s / calls,
          .p10_s = timing.p10_s / calls,
          .p90_s = timing.p90_s / calls,
          .calls = timing.calls * calls};
}

}  // namespace

int copies_beyond_cache(double bytes, std::int64_t l2_bytes) {
  constexpr double kTimesCache = 4;  // the cache does not evict in the order of use
  const double copies = std::ceil(kTimesCache * static_cast<double>(l2_bytes) / bytes);
  return static_cast<int>(std::clamp(copies, 2.0, 512.0));
}

DeviceMeasurement measure(std::string_view op, const DeviceCase& shape, double min_seconds) {
  const cuda::OwnedStream stream;
  std::vector<DeviceWork> work{shape.prepare(1)};
  cuda::synchronize(nullptr);  // inputs may be computed there, for which `stream` does not wait
  work[0].call(stream);
  cuda::synchronize(stream);
  DeviceMeasurement out;
  out.error = work[0].error();
  out.choice = work[0].choice;
  out.tuned = work[0].tuned;
  require_accuracy(op, shape.shape, out.error, shape.allowed_error);

  const std::int64_t l2_bytes = cuda::properties(cuda::current_device()).l2_bytes;
  out.copies = copies_beyond_cache(shape.bytes, l2_bytes);
  while (static_cast<int>(work.size()) < out.copies) work.push_back(shape.prepare(work.size() + 1));
  cuda::synchronize(nullptr);
  const auto call_all = [&] {
    for (const DeviceWork& one : work) one.call(stream);
  };
  const cuda::Graph graph(stream, call_all);
  const auto replay = [&](int) { graph.launch(stream); };
  // The second replay is the first whose instructions and arguments are on the device.
  const double once_s = cuda::time_on_device(stream, 2, replay).back();
  const auto replays = std::clamp(static_cast<std::size_t>(min_seconds / std::max(once_s, 1e-7)),
                                  kLeastReplays, kMostReplays);
  out.device =
      timing_of(cuda::time_on_device(stream, static_cast<int>(replays), replay), out.copies);
  out.wall = per_call(time_calls(
                          [&] {
                            call_all();
                            cuda::synchronize(stream);
                          },
                          min_seconds),
                      out.copies);
  return out;
}

void select_device(int index) {
  cuda::properties(index);  // throws if there is none
  cuda::set_device(index);
}

double largest_error(const std::vector<float>& got, const std::vector<double>& truth) {
  check(got.size() == truth.size(), "largest_error: {} results, expected {}", got.size(),
        truth.size());
  double squares = 0;
  for (double value : truth) squares += value * value;
  const double rms = std::sqrt(squares / static_cast<double>(truth.size()));
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - truth[i]);
    if (std::isnan(error)) return INFINITY;
    largest = std::max(largest, error / (std::abs(truth[i]) + rms));
  }
  return largest;
}

double relative_error(const std::vector<float>& got, const std::vector<double>& truth) {
  check(got.size() == truth.size(), "relative_error: {} results, expected {}", got.size(),
        truth.size());
  double errors = 0;
  double squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double error = static_cast<double>(got[i]) - truth[i];
    errors += error * error;
    squares += truth[i] * truth[i];
  }
  return std::isnan(errors) ? INFINITY : std::sqrt(errors / squares);
}

}  // namespace adder::bench
