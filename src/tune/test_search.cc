#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/random.h"
#include "tune/search.h"

namespace adder::tune {
namespace {

// Candidates that take given times, each run a little longer at random, and now and then far
// longer, as others on the machine have it.
class Simulation {
 public:
  explicit Simulation(std::vector<double> seconds, std::uint64_t stream = 0)
      : seconds_(std::move(seconds)), random_(stream) {}

  TimeRuns time() {
    return [this](std::size_t candidate, int count) {
      turns.push_back(candidate);
      std::vector<double> out;
      for (int i = 0; i < count; ++i) {
        const double drift = 1 + drift_per_run * static_cast<double>(runs++);
        double factor = drift * (1 + noise * random_.uniform(0, 1));
        if (random_.uniform(0, 1) < outliers) factor *= 3;
        // The first run after another candidate's pays for that.
        if (i == 0) factor *= 5;
        out.push_back(seconds_[candidate] * factor);
        spent_s += out.back();
      }
      return out;
    };
  }

  double noise = 0;
  double outliers = 0;
  double drift_per_run = 0;
  std::int64_t runs = 0;
  double spent_s = 0;
  std::vector<std::size_t> turns;

 private:
  std::vector<double> seconds_;
  test::Random random_;
};

TEST(Search, FindsTheFastest) {
  Simulation simulation({10e-6, 9e-6, 30e-6, 8e-6, 8.5e-6, 11e-6});
  const SearchResult result = search(6, simulation.time(), {.seconds = 0.01});
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.best, 3U);
  EXPECT_DOUBLE_EQ(result.times[3].median_s, 8e-6);
  EXPECT_DOUBLE_EQ(result.times[0].median_s, 10e-6);
  EXPECT_TRUE(result.times[0].finalist);  // what it is compared with, though it is far behind
  EXPECT_TRUE(result.times[4].finalist);
  EXPECT_FALSE(result.times[1].finalist);
  EXPECT_FALSE(result.times[2].finalist);
  EXPECT_GT(result.times[2].median_s, 0);
}

// Of work so long that a turn is one run, not the run that pays for the change.
TEST(Search, WhatAChangeCostsDoesNotCount) {
  Simulation simulation({1.0, 0.9});
  const SearchResult result = search(2, simulation.time(), {.seconds = 0.01});
  EXPECT_EQ(result.best, 1U);
  EXPECT_DOUBLE_EQ(result.times[0].median_s, 1.0);
  EXPECT_DOUBLE_EQ(result.times[1].median_s, 0.9);
}

TEST(Search, FindsItInNoise) {
  for (std::uint64_t stream = 0; stream < 20; ++stream) {
    Simulation simulation({100e-6, 96e-6, 93e-6, 90e-6, 140e-6}, stream);
    simulation.noise = 0.1;
    simulation.outliers = 0.03;
    EXPECT_EQ(search(5, simulation.time(), {.seconds = 0.2}).best, 3U);
  }
}

TEST(Search, KeepsTheFirstUnlessAnotherIsClearlyFaster) {
  Simulation close({100e-6, 99.2e-6, 100e-6});
  EXPECT_EQ(search(3, close.time(), {.seconds = 0.01}).best, 0U);
  Simulation clear({100e-6, 98.9e-6, 100e-6});
  EXPECT_EQ(search(3, clear.time(), {.seconds = 0.01}).best, 1U);
  Simulation alone({1.0});
  EXPECT_EQ(search(1, alone.time(), {.seconds = 0.01}).best, 0U);
  EXPECT_GE(alone.runs, 4);
}

// A clock that slows down by a few percent meanwhile.
TEST(Search, DriftIsTheSameForAll) {
  for (std::size_t faster : {1, 2}) {
    std::vector<double> seconds(3, 100e-6);
    seconds[faster] = 98e-6;
    Simulation simulation(std::move(seconds));
    simulation.drift_per_run = 0.05 / 2000;
    EXPECT_EQ(search(3, simulation.time(), {.seconds = 0.2}).best, faster);
    EXPECT_GT(simulation.runs, 1500);
  }
}

TEST(Search, SpendsTheTimeItIsGivenAndLittleOnTheHopeless) {
  Simulation simulation({1e-3, 50e-3, 1.05e-3, 60e-3});
  search(4, simulation.time(), {.seconds = 0.1});
  EXPECT_GT(simulation.spent_s, 0.1);
  // A turn of the hopeless takes the time of eight runs: three, and five for the first.
  EXPECT_LT(simulation.spent_s, 0.1 + 8 * 0.11 + 0.15);
  EXPECT_EQ(std::count(simulation.turns.begin(), simulation.turns.end(), 1U), 1);
}

TEST(Search, StopsWhenToldAndHasNoResultThen) {
  for (int turns : {0, 1, 3, 9}) {
    Simulation simulation({1e-3, 1e-3, 1e-3});
    const SearchResult result = search(
        3, simulation.time(),
        {.seconds = 1, .stop = [&] { return static_cast<int>(simulation.turns.size()) >= turns; }});
    EXPECT_FALSE(result.complete);
    EXPECT_LE(static_cast<int>(simulation.turns.size()), turns + 1);
  }
}

TEST(Search, ReportsHowFarItIs) {
  Simulation simulation({1e-3, 1e-3, 1e-3});
  std::vector<double> reports;
  search(3, simulation.time(),
         {.seconds = 0.1, .progress = [&](double fraction) { reports.push_back(fraction); }});
  EXPECT_GE(reports.size(), 6U);
  EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
  EXPECT_EQ(reports.front(), 0);
  EXPECT_GT(reports.back(), 0.8);
  EXPECT_LE(reports.back(), 1);
}

TEST(Search, MedianAndSpreadAreThoseOfTheRuns) {
  int run = 0;
  const auto counting = [&](std::size_t, int count) {
    std::vector<double> out;
    for (int i = 0; i < count; ++i) out.push_back(++run % 11 == 0 ? 2.0 : 1.0);
    return out;
  };
  const CandidateTimes times = search(1, counting, {.seconds = 50}).times[0];
  EXPECT_EQ(times.median_s, 1);
  EXPECT_EQ(times.p10_s, 1);
  EXPECT_GE(times.runs, 40);
}

}  // namespace
}  // namespace adder::tune
