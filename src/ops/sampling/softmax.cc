#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "ops/sampling/portable_exp.h"
#include "ops/sampling/sampling.h"
#include "ops/sampling/scan.h"

namespace adder {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Σ exp(logit - max), and max.
struct Normalizer {
  double max;
  double sum;
  double log() const { return max + std::log(sum); }
};

Normalizer normalizer(std::string_view op, std::span<const float> logits) {
  const double max = static_cast<double>(checked_max(op, logits));
  double sum = 0;
  for (float logit : logits) sum += portable_exp(static_cast<double>(logit) - max);
  return {max, sum};
}

}  // namespace

float checked_max(std::string_view op, std::span<const float> logits) {
  check(!logits.empty(), "{}: there are no logits, expected one for each token", op);
  // Lanes that do not depend on each other, which the compiler turns into vectors.
  constexpr std::size_t kLanes = 16;
  float best[kLanes];
  int bad[kLanes] = {};
  std::fill(best, best + kLanes, -kInf);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float v = logits[i + lane];
      best[lane] = v > best[lane] ? v : best[lane];
      bad[lane] |= v < kInf ? 0 : 1;
    }
  }
  for (; i < logits.size(); ++i) {
    best[0] = std::max(best[0], logits[i]);
    bad[0] |= logits[i] < kInf ? 0 : 1;
  }
  if (std::any_of(bad, bad + kLanes, [](int b) { return b != 0; })) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float v) { return !(v < kInf); });
    // The sign of a NaN says nothing, and differs between platforms.
    fail("{}: the logit of token {} is {}, expected a finite number or -inf", op,
         at - logits.begin(), std::abs(*at));
  }
  const float max = *std::max_element(best, best + kLanes);
  check(max > -kInf, "{}: all {} logits are -inf, expected at least one finite number", op,
        logits.size());
  return max;
}

int argmax(std::span<const float> logits) {
  const float max = checked_max("argmax", logits);
  return static_cast<int>(std::find(logits.begin(), logits.end(), max) - logits.begin());
}

void softmax(std::span<const float> logits, float temperature, std::span<float> probabilities) {
  check(temperature > 0 && temperature < kInf,
        "softmax: temperature is {}, expected a finite number above 0", temperature);
  check(probabilities.size() == logits.size(),
        "softmax: probabilities has {} elements, expected {} as logits", probabilities.size(),
        logits.size());
  const double max = static_cast<double>(checked_max("softmax", logits));
  const auto weight = [&](float logit) {
    return portable_exp((static_cast<double>(logit) - max) / static_cast<double>(temperature));
  };
  double sum = 0;
  for (float logit : logits) sum += weight(logit);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probabilities[i] = static_cast<float>(weight(logits[i]) / sum);
  }
}

void log_softmax(std::span<const float> logits, std::span<double> log_probabilities) {
  check(log_probabilities.size() == logits.size(),
        "log_softmax: log_probabilities has {} elements, expected {} as logits",
        log_probabilities.size(), logits.size());
  const double log_sum = normalizer("log_softmax", logits).log();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    log_probabilities[i] = static_cast<double>(logits[i]) - log_sum;
  }
}

double negative_log_likelihood(std::span<const float> logits, int target) {
  check(target >= 0 && static_cast<std::size_t>(target) < logits.size(),
        "negative_log_likelihood: target is {}, expected a token id below {}", target,
        logits.size());
  const Normalizer n = normalizer("negative_log_likelihood", logits);
  // Not log() - logit: near certainty the difference to the greatest is what counts.
  return std::log(n.sum) + (n.max - static_cast<double>(logits[static_cast<std::size_t>(target)]));
}

}  // namespace adder
