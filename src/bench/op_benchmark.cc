#include "bench/op_benchmark.h"

#include <algorithm>
#include <chrono>

#include "core/check.h"

namespace adder::bench {
namespace {

double seconds_of(const std::function<void()>& body, std::int64_t calls) {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Timing time_calls(const std::function<void()>& body, double min_seconds) {
  constexpr double kBatchSeconds = 2e-4;
  constexpr std::size_t kMinSamples = 5;
  body();
  const double once = std::max(1e-9, seconds_of(body, 1));
  const auto batch = std::max<std::int64_t>(1, static_cast<std::int64_t>(kBatchSeconds / once));
  std::vector<double> samples;
  for (double total = 0; total < min_seconds || samples.size() < kMinSamples;) {
    const double elapsed = seconds_of(body, batch);
    total += elapsed;
    samples.push_back(elapsed / static_cast<double>(batch));
  }
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double fraction) {
    return samples[static_cast<std::size_t>(fraction * static_cast<double>(samples.size() - 1))];
  };
  return {.median_s = at(0.5),
          .p10_s = at(0.1),
          .p90_s = at(0.9),
          .calls = batch * static_cast<std::int64_t>(samples.size())};
}

void require_accuracy(std::string_view op, const std::string& shape, double error, double allowed) {
  check(error <= allowed, "bench {}: at {} the error is {:.3g}, expected at most {:.3g}", op, shape,
        error, allowed);
}

}  // namespace adder::bench
