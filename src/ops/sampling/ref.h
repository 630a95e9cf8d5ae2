#pragma once

// The meaning of sample_token, in plain steps over a fully sorted vocabulary: the probability of
// every token.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "ops/sampling/sampling.h"

namespace adder::ref {

inline std::vector<double> token_probabilities(std::span<const float> logits,
                                               const SamplingParams& params,
                                               std::span<const int> recent) {
  std::vector<double> score(logits.begin(), logits.end());
  for (int id : std::set<int>(recent.begin(), recent.end())) {
    double& s = score[static_cast<std::size_t>(id)];
    s = s > 0 ? s / static_cast<double>(params.repeat_penalty)
              : s * static_cast<double>(params.repeat_penalty);
  }
  std::vector<std::size_t> order(score.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
  std::vector<double> p(score.size(), 0.0);
  if (params.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }

  const double max = score[order[0]];
  const auto k = static_cast<std::size_t>(params.top_k);
  if (k > 0 && k < order.size()) order.resize(k);
  double sum = 0;
  for (std::size_t id : order) {
    p[id] = std::exp((score[id] - max) / static_cast<double>(params.temperature));
    sum += p[id];
  }
  double before = 0;
  for (std::size_t id : order) {
    const bool beyond_top_p =
        params.top_p < 1 && before > 0 && before >= static_cast<double>(params.top_p) * sum;
    before += p[id];
    if (beyond_top_p || p[id] < static_cast<double>(params.min_p)) p[id] = 0;
  }
  const double left = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= left;
  return p;
}

}  // namespace adder::ref
