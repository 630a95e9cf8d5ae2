#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tests/support/random.h"

namespace adder::test {

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* text = std::getenv("ADDER_TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 20231201ull;
  }();
  return value;
}

namespace {

double root_mean_square(std::span<const double> values) {
  double sum = 0;
  for (double v : values) sum += v * v;
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

::testing::AssertionResult size_mismatch(std::size_t got, std::size_t expected) {
  return ::testing::AssertionFailure() << got << " elements, expected " << expected;
}

// Fails at the element whose error exceeds its allowance by the largest factor.
template <typename Allowance>
::testing::AssertionResult judge(std::span<const float> got, std::span<const double> truth,
                                 Allowance&& allowance) {
  double worst_ratio = 1;
  std::size_t worst = got.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(truth[i]) && std::isnan(got[i])) continue;
    const double error = std::abs(static_cast<double>(got[i]) - truth[i]);
    const bool same_infinity = std::isinf(truth[i]) && static_cast<double>(got[i]) == truth[i];
    if (same_infinity) continue;
    const double allowed = allowance(i);
    const double ratio = std::isnan(error) ? INFINITY : error == 0 ? 0 : error / allowed;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  if (worst == got.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << worst << " of " << got.size() << " is " << got[worst] << ", expected "
         << truth[worst] << ": error " << std::abs(static_cast<double>(got[worst]) - truth[worst])
         << " exceeds the allowed " << allowance(worst) << " (seed " << seed() << ")";
}

}  // namespace

::testing::AssertionResult as_good_as_plain(std::span<const float> got,
                                            std::span<const double> truth,
                                            std::span<const float> plain, double floor) {
  if (got.size() != truth.size()) return size_mismatch(got.size(), truth.size());
  if (plain.size() != truth.size()) return size_mismatch(plain.size(), truth.size());
  double plain_error = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double error = std::abs(static_cast<double>(plain[i]) - truth[i]);
    if (std::isfinite(error)) plain_error = std::max(plain_error, error);
  }
  const double allowed = 2 * plain_error + floor * root_mean_square(truth);
  return judge(got, truth, [&](std::size_t) { return allowed; });
}

::testing::AssertionResult all_close(std::span<const float> got, std::span<const double> truth,
                                     double tolerance) {
  if (got.size() != truth.size()) return size_mismatch(got.size(), truth.size());
  const double scale = root_mean_square(truth);
  return judge(got, truth, [&](std::size_t i) { return tolerance * (scale + std::abs(truth[i])); });
}

::testing::AssertionResult same_bits(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return size_mismatch(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << got.size() << " is " << got[i] << ", expected exactly "
             << expected[i] << " (seed " << seed() << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

double relative_error(std::span<const float> got, std::span<const double> truth) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double d = static_cast<double>(got[i]) - truth[i];
    error += d * d;
    norm += truth[i] * truth[i];
  }
  return std::sqrt(error / norm);
}

std::vector<double> to_double(std::span<const float> values) {
  return {values.begin(), values.end()};
}

}  // namespace adder::test
