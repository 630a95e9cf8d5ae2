#pragma once

// How a kernel is judged (the test of FlashAttention, per element): its error against the float64
// definition may be at most twice the error of the plain algorithm at the kernel's precision, plus
// a small floor. Assertions print the worst index and the seed.

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace adder::test {

/// `got` against the float64 `truth`, where `plain` is the plain float32 version's result.
/// An element passes if |got - truth| <= 2 · e + floor · scale, with e the largest error of `plain`
/// over all elements and scale the root mean square of `truth`. NaN matches only NaN.
::testing::AssertionResult as_good_as_plain(std::span<const float> got,
                                            std::span<const double> truth,
                                            std::span<const float> plain, double floor = 1e-6);

/// |got - truth| <= tolerance · rms(truth) + tolerance · |truth| for every element.
::testing::AssertionResult all_close(std::span<const float> got, std::span<const double> truth,
                                     double tolerance);

/// Equal bit for bit (NaN equals the same NaN).
::testing::AssertionResult same_bits(std::span<const float> got, std::span<const float> expected);

/// ‖got − truth‖ / ‖truth‖.
double relative_error(std::span<const float> got, std::span<const double> truth);

std::vector<double> to_double(std::span<const float> values);

}  // namespace adder::test
