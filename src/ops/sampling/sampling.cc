#include "ops/sampling/sampling.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "ops/sampling/scan.h"
#include "ops/sampling/weights.h"

namespace adder {
namespace {

using Candidate = SamplingWorkspace::Candidate;
using Candidates = std::vector<Candidate>;

// The likelier first; of equals the lower id. A total order, so that which candidates a selection
// keeps does not depend on the algorithm of the standard library.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Moves the `count` likeliest candidates to the front, likeliest first.
void sort_likeliest(Candidates& candidates, std::size_t count) {
  const auto middle = candidates.begin() + static_cast<std::ptrdiff_t>(count);
  if (middle != candidates.end()) {
    std::nth_element(candidates.begin(), middle, candidates.end(), likelier);
  }
  std::sort(candidates.begin(), middle, likelier);
}

void penalize(std::span<float> logits, float penalty, std::span<const int> recent,
              std::vector<int>& distinct) {
  distinct.assign(recent.begin(), recent.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (int id : distinct) {
    check(id >= 0 && static_cast<std::size_t>(id) < logits.size(),
          "sample_token: recent contains token id {}, expected ids below {}", id, logits.size());
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void take_all(std::span<const float> logits, Candidates& candidates) {
  candidates.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {.weight = 0, .logit = logits[i], .id = static_cast<int>(i)};
  }
}

// The k likeliest, likeliest first, in one pass: those above the k-th greatest so far are gathered,
// and when twice as many have come together the lesser half goes. O(vocab_size) for any k.
void take_top_k(std::span<const float> logits, std::size_t k, Candidates& candidates) {
  constexpr std::size_t kBlock = 16;
  const std::size_t most = 2 * k + kBlock;
  candidates.clear();
  float threshold = -std::numeric_limits<float>::infinity();
  bool full = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    int above = full ? 0 : 1;
    for (float logit : block) above |= logit > threshold ? 1 : 0;
    if (above == 0) continue;  // by far the most blocks
    for (std::size_t i = 0; i < block.size(); ++i) {
      // An equal that comes later has a higher id, so it loses.
      if (full && !(block[i] > threshold)) continue;
      candidates.push_back({.weight = 0, .logit = block[i], .id = static_cast<int>(begin + i)});
    }
    if (candidates.size() >= most) {
      const auto last = candidates.begin() + static_cast<std::ptrdiff_t>(k - 1);
      std::nth_element(candidates.begin(), last, candidates.end(), likelier);
      candidates.resize(k);
      threshold = candidates.back().logit;
      full = true;
    }
  }
  sort_likeliest(candidates, k);
  candidates.resize(k);
}

// Fills in the weights and returns their sum.
std::uint64_t weigh(Candidates& candidates, float max, float temperature, double scale) {
  const double inverse_temperature = 1.0 / static_cast<double>(temperature);
  std::uint64_t sum = 0;
  for (Candidate& c : candidates) {
    c.weight = token_weight(c.logit, max, inverse_temperature, scale);
    sum += c.weight;
  }
  return sum;
}

// Keeps the shortest run of likeliest candidates whose weights reach `wanted`, which is not above
// their sum; they end up likeliest first. Sorts only as many as it needs, give or take a factor of
// four.
void keep_likeliest(Candidates& candidates, std::uint64_t wanted) {
  for (std::size_t count = 64;; count *= 4) {
    count = std::min(count, candidates.size());
    sort_likeliest(candidates, count);
    std::uint64_t reached = 0;
    for (std::size_t i = 0; i < count; ++i) {
      reached += candidates[i].weight;
      if (reached >= wanted) {
        candidates.resize(i + 1);
        return;
      }
    }
    assert(count < candidates.size());
  }
}

int draw(const Candidates& candidates, std::uint64_t random) {
  std::uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  const std::uint64_t wanted = drawn_weight(random, sum);
  std::uint64_t reached = 0;
  for (const Candidate& c : candidates) {
    reached += c.weight;
    if (reached > wanted) return c.id;
  }
  assert(false);
  return candidates.front().id;
}

}  // namespace

void validate(const SamplingParams& params) {
  check(params.temperature >= 0 && std::isfinite(params.temperature),
        "sampling: temperature is {}, expected a finite number that is not negative",
        params.temperature);
  check(params.top_k >= 0, "sampling: top_k is {}, expected a number that is not negative",
        params.top_k);
  check(params.top_p >= 0 && params.top_p <= 1,
        "sampling: top_p is {}, expected a number from 0 to 1", params.top_p);
  check(params.min_p >= 0 && params.min_p <= 1,
        "sampling: min_p is {}, expected a number from 0 to 1", params.min_p);
  check(params.repeat_penalty > 0 && std::isfinite(params.repeat_penalty),
        "sampling: repeat_penalty is {}, expected a finite number above 0", params.repeat_penalty);
}

int sample_token(std::span<const float> logits, const SamplingParams& params,
                 std::span<const int> recent, Rng& rng, SamplingWorkspace& workspace) {
  validate(params);
  float max = checked_max("sample_token", logits);
  if (params.repeat_penalty != 1.0F && !recent.empty()) {
    workspace.logits.assign(logits.begin(), logits.end());
    penalize(workspace.logits, params.repeat_penalty, recent, workspace.recent);
    logits = workspace.logits;
    max = checked_max("sample_token", logits);
  }
  if (params.temperature == 0) {
    return static_cast<int>(std::find(logits.begin(), logits.end(), max) - logits.begin());
  }

  Candidates& candidates = workspace.candidates;
  const auto k = static_cast<std::size_t>(params.top_k);
  if (k == 0 || k >= logits.size()) {
    take_all(logits, candidates);
  } else {
    take_top_k(logits, k, candidates);
  }
  const double scale = weight_scale(logits.size());
  const std::uint64_t sum = weigh(candidates, max, params.temperature, scale);
  if (params.top_p < 1) keep_likeliest(candidates, top_p_weight(params.top_p, sum));
  if (params.min_p > 0) {
    const std::uint64_t least = min_p_weight(params.min_p, scale);
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < least; });
  }
  return draw(candidates, rng.next());
}

}  // namespace adder
