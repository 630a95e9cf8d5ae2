#pragma once

// How states that were rounded to bf16 at random are judged: every element is one of the two
// neighbours of what it should be, and they are right in the mean.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "tests/support/device.h"
#include "tests/support/random.h"

namespace adder::test {

/// The distance from |v|, a normal number or zero, to the next value that bf16 has.
inline double bf16_spacing(double v) {
  constexpr int kLeastExponent = -126;
  constexpr int kFractionBits = 7;
  const int exponent = v == 0 ? kLeastExponent : std::max(std::ilogb(v), kLeastExponent);
  return std::ldexp(1.0, exponent - kFractionBits);
}

/// Every element is a bf16 value less than a spacing away from the truth, or `slack` more.
inline ::testing::AssertionResult are_neighbours(std::span<const float> got,
                                                 std::span<const double> truth, double slack) {
  if (got.size() != truth.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, expected " << truth.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - truth[i]);
    const bool is_bf16 = to_float(to_bf16(got[i])) == got[i];
    if (is_bf16 && error < bf16_spacing(truth[i]) + slack) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " of " << got.size() << " is " << got[i] << ", expected a "
           << "neighbour of " << truth[i] << " in bf16 (seed " << seed() << ")";
  }
  return ::testing::AssertionSuccess();
}

/// The slack of a kernel that computes in float32 where plain loops give `plain`: as
/// as_good_as_plain has it.
inline double slack_of(std::span<const float> plain, std::span<const double> truth) {
  double error = 0;
  double squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(plain[i]) - truth[i]));
    squares += truth[i] * truth[i];
  }
  return 2 * error + 1e-6 * std::sqrt(squares / static_cast<double>(truth.size()));
}

/// Of values that were rounded, those that lie in the same eighth of the way from one neighbour to
/// the next are right in the mean, by five standard deviations.
inline ::testing::AssertionResult is_unbiased(std::span<const float> got,
                                              std::span<const float> exact) {
  struct Part {
    double error = 0, variance = 0;
  };
  std::array<Part, 8> parts;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double magnitude = std::abs(static_cast<double>(exact[i]));
    const double spacing = bf16_spacing(magnitude);
    const double way = magnitude / spacing - std::floor(magnitude / spacing);
    Part& part = parts[static_cast<std::size_t>(8 * way)];
    part.error += (std::abs(static_cast<double>(got[i])) - magnitude) / spacing;
    part.variance += way * (1 - way);
  }
  for (std::size_t eighth = 0; eighth < parts.size(); ++eighth) {
    const Part& part = parts[eighth];
    if (part.variance > 100 && std::abs(part.error) <= 5 * std::sqrt(part.variance)) continue;
    return ::testing::AssertionFailure()
           << "eighth " << eighth << ": the errors sum to " << part.error
           << " spacings, expected at most five times " << std::sqrt(part.variance)
           << ", itself at least 10 (seed " << seed() << ")";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace adder::test
