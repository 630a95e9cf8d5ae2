#pragma once

// Judges many small results together. The largest rounding error of a few elements is a matter of
// luck, so a small case alone says little about what its plain version loses; all cases of a test
// together say it well.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace adder::test {

/// As `as_good_as_plain`, over all cases added, whose elements should be of one kind and size.
class Pooled {
 public:
  void add(std::span<const float> got, std::span<const double> truth, std::span<const float> plain,
           const std::string& label) {
    ASSERT_EQ(got.size(), truth.size()) << label;
    ASSERT_EQ(plain.size(), truth.size()) << label;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - truth[i]);
      const double plain_error = std::abs(static_cast<double>(plain[i]) - truth[i]);
      ASSERT_TRUE(std::isfinite(plain_error)) << label << ": the plain version is not finite";
      plain_error_ = std::max(plain_error_, plain_error);
      sum_of_squares_ += truth[i] * truth[i];
      if (!(error <= worst_error_)) {  // a NaN is worse than anything
        worst_error_ = std::isnan(error) ? INFINITY : error;
        worst_ = label + ": element " + std::to_string(i) + " of " + std::to_string(got.size()) +
                 " is " + std::to_string(got[i]) + ", expected " + std::to_string(truth[i]);
      }
    }
    count_ += truth.size();
  }

  ::testing::AssertionResult as_good_as_plain(double floor = 1e-6) const {
    if (count_ == 0) return ::testing::AssertionFailure() << "nothing was compared";
    const double scale = std::sqrt(sum_of_squares_ / static_cast<double>(count_));
    const double allowed = 2 * plain_error_ + floor * scale;
    if (worst_error_ <= allowed) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << worst_ << ": error " << worst_error_ << " exceeds the allowed " << allowed
           << " (seed " << seed() << ")";
  }

 private:
  double plain_error_ = 0;
  double worst_error_ = 0;
  double sum_of_squares_ = 0;
  std::size_t count_ = 0;
  std::string worst_;
};

}  // namespace adder::test
