#pragma once

// Benchmarks of operations. Every operation's bench.cc defines one function that returns an
// OpBenchmark; src/bench/registry.cc lists them all, and `adder bench op NAME` runs them.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "adder/thread_pool.h"

namespace adder::bench {

/// Seconds per call over many calls of the same work.
struct Timing {
  double median_s = 0;
  double p10_s = 0;
  double p90_s = 0;
  std::int64_t calls = 0;
};

/// Calls `body` once to warm up and then until `min_seconds` have passed (at least 5 times).
/// Short bodies are timed in batches so that the clock does not dominate.
Timing time_calls(const std::function<void()>& body, double min_seconds);

/// One shape of one operation.
struct Measurement {
  std::string shape;  ///< for instance "ntokens 512, d_model 768"
  double bytes = 0;   ///< that the operation must move to and from memory, at least
  double flops = 0;   ///< that the algorithm needs, multiply and add counted apart
  double error = 0;   ///< largest error against the float64 definition, relative to its rms
  double allowed_error = 0;
  Timing timing;
};

struct OpBenchmark {
  std::string_view name;
  std::string_view description;
  /// Checks the result of every shape against the definition, then times it. A wrong result
  /// throws adder::Error instead of being timed.
  std::function<std::vector<Measurement>(ThreadPool& pool, double min_seconds)> run;
};

/// Throws unless `error` is at most `allowed`; for the check before the timing.
void require_accuracy(std::string_view op, const std::string& shape, double error, double allowed);

/// All operations, in the order of the model's data flow.
std::vector<OpBenchmark> op_benchmarks();

}  // namespace adder::bench
