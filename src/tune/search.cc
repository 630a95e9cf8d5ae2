#include "tune/search.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

namespace adder::tune {
namespace {

using Samples = std::vector<double>;

constexpr int kFirstRuns = 3;      // before a look at a candidate
constexpr int kSecondRuns = 3;     // if it is not hopeless
constexpr double kHopeless = 1.5;  // times the best so far
constexpr double kClose = 1.1;     // times the best, to be in the final
constexpr std::size_t kMostFinalists = 8;
constexpr int kRounds = 10;  // of the final, about
constexpr int kLeastRounds = 4;
constexpr int kMostRounds = 100;
constexpr int kMostRunsATurn = 500;

CandidateTimes times_of(Samples samples, bool finalist) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double fraction) {
    return samples[static_cast<std::size_t>(fraction * static_cast<double>(samples.size() - 1))];
  };
  return {.median_s = at(0.5),
          .p10_s = at(0.1),
          .p90_s = at(0.9),
          .runs = static_cast<std::int64_t>(samples.size()),
          .finalist = finalist};
}

class Search {
 public:
  Search(std::size_t ncandidates, const TimeRuns& time, const SearchOptions& options)
      : time_(time),
        options_(options),
        fastest_run_(ncandidates),
        result_{.times = std::vector<CandidateTimes>(ncandidates)} {}

  SearchResult run() {
    result_.complete = sift() && final(finalists());
    if (result_.complete) result_.best = best();
    return std::move(result_);
  }

 private:
  bool stopped() const { return options_.stop && options_.stop(); }
  void report(double fraction) const {
    if (options_.progress) options_.progress(fraction);
  }

  /// Looks at each candidate. False if it was stopped.
  bool sift() {
    const std::size_t count = result_.times.size();
    double fastest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < count; ++i) {
      if (stopped()) return false;
      report(kSiftShare * static_cast<double>(i) / static_cast<double>(count));
      Samples samples = turn(i, kFirstRuns);
      if (*std::min_element(samples.begin(), samples.end()) <= kHopeless * fastest || i == 0) {
        const Samples more = turn(i, kSecondRuns);
        samples.insert(samples.end(), more.begin(), more.end());
      }
      fastest_run_[i] = *std::min_element(samples.begin(), samples.end());
      fastest = std::min(fastest, fastest_run_[i]);
      result_.times[i] = times_of(std::move(samples), false);
    }
    return true;
  }

  /// Candidate 0 and the fastest of those that are close to the best, each by its fastest run: of
  /// few runs that says more than the median, since what disturbs a run only slows it.
  std::vector<std::size_t> finalists() const {
    std::vector<std::size_t> order(result_.times.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
      return fastest_run_[x] < fastest_run_[y];
    });
    const double limit = kClose * fastest_run_[order[0]];
    std::vector<std::size_t> out{0};
    for (std::size_t i : order) {
      const bool close = i != 0 && fastest_run_[i] <= limit;
      if (close && out.size() < kMostFinalists) out.push_back(i);
    }
    return out;
  }

  bool final(std::vector<std::size_t> finalists) {
    std::vector<Samples> samples(result_.times.size());
    const double share_s = options_.seconds / (kRounds * static_cast<double>(finalists.size()));
    double spent_s = 0;
    for (int round = 0; round < kMostRounds; ++round) {
      if (spent_s >= options_.seconds && round >= kLeastRounds) break;
      report(kSiftShare + (1 - kSiftShare) * std::min(1.0, spent_s / options_.seconds));
      for (std::size_t i : finalists) {
        if (stopped()) return false;
        const double runs = std::clamp(share_s / std::max(median(i), 1e-9), 1.0,
                                       static_cast<double>(kMostRunsATurn));
        const Samples more = turn(i, static_cast<int>(runs));
        samples[i].insert(samples[i].end(), more.begin(), more.end());
        spent_s += std::accumulate(more.begin(), more.end(), 0.0);
      }
      std::reverse(finalists.begin(), finalists.end());
    }
    for (std::size_t i : finalists) result_.times[i] = times_of(std::move(samples[i]), true);
    return true;
  }

  /// `runs` of a candidate after one that finds caches and instructions as another has left them.
  Samples turn(std::size_t candidate, int runs) {
    Samples samples = time_(candidate, runs + 1);
    assert(samples.size() == static_cast<std::size_t>(runs) + 1);
    samples.erase(samples.begin());
    return samples;
  }

  std::size_t best() const {
    std::size_t fastest = 0;
    for (std::size_t i = 1; i < result_.times.size(); ++i) {
      if (result_.times[i].finalist && median(i) < median(fastest)) fastest = i;
    }
    return median(fastest) <= (1 - kLeastGain) * median(0) ? fastest : 0;
  }

  double median(std::size_t i) const { return result_.times[i].median_s; }

  static constexpr double kSiftShare = 0.5;
  const TimeRuns& time_;
  const SearchOptions& options_;
  std::vector<double> fastest_run_;
  SearchResult result_;
};

}  // namespace

SearchResult search(std::size_t ncandidates, const TimeRuns& time, const SearchOptions& options) {
  assert(ncandidates > 0);
  return Search(ncandidates, time, options).run();
}

}  // namespace adder::tune
