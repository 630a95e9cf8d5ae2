#pragma once

// Finds the fastest of some candidates for the same work, in little time and by a measure that does
// not mistake noise for a gain. Knows nothing of devices: what it times is a function.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace adder::tune {

/// Does the work `count` times by candidate `candidate`; returns the seconds of each.
using TimeRuns = std::function<std::vector<double>(std::size_t candidate, int count)>;

struct SearchOptions {
  /// Time of the final's runs, together; at least a few runs of each are made.
  double seconds = 0.5;
  /// Asked between measurements; true ends the search.
  std::function<bool()> stop = {};
  /// Told between measurements what part is done, in [0, 1].
  std::function<void(double fraction)> progress = {};
};

struct CandidateTimes {
  /// Of the final's runs, or of the first ones of a candidate that was not in it; 0: never run.
  double median_s = 0;
  double p10_s = 0;
  double p90_s = 0;
  std::int64_t runs = 0;
  bool finalist = false;
};

struct SearchResult {
  std::vector<CandidateTimes> times;
  /// The fastest, unless candidate 0, which is what would be used without a search, is as fast but
  /// for kLeastGain: differences below that come and go with the day.
  std::size_t best = 0;
  /// False if `stop` ended it: then there is no best.
  bool complete = true;
};

inline constexpr double kLeastGain = 0.01;

/// First each candidate is run a few times; one that is far slower than the best so far is dropped
/// at first sight. Then candidate 0 and those that are close to the best take turns, forwards and
/// backwards, so that a clock that drifts is the same for all, and medians decide.
SearchResult search(std::size_t ncandidates, const TimeRuns& time, const SearchOptions& options);

}  // namespace adder::tune
