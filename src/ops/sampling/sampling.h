#pragma once

// From logits to a token.
//
// `logits` are those of the vocabulary alone: a head whose rows were padded to a round number is
// passed as `logits.first(vocab_size)`. They may be -inf (a token that is ruled out), but not all
// of them. NaN or +inf, which come of a broken model or state, are an adder::Error that says where.
//
// The steps of sample_token, in their order; each sees what the one before left:
//   1. repeat_penalty: the logit of every distinct recent token, divided if positive, else
//      multiplied (Keskar et al. 2019, section 4.1)
//   2. temperature: all logits divided by it; 0 ends here with the greatest (the first of equals)
//   3. top_k: only the k greatest (Fan et al. 2018); of equals the lowest ids
//   4. top_p: the fewest most likely tokens whose probabilities, among those left, sum to at least
//      top_p (Holtzman et al. 2019, section 3.1)
//   5. min_p: only tokens at least min_p times as likely as the likeliest (Nguyen et al. 2024)
//   6. one draw from what is left, renormalized; it takes one number of the generator. Tokens are
//      laid end to end, likeliest first after top_k or top_p, else by id
// From 3 on, probabilities are integers in proportion to the likeliest token's (see weights.h):
// their sums are exact, whatever the order.
// The same logits, parameters and generator give the same token on every platform and CPU tier.

#include <cstdint>
#include <span>
#include <vector>

#include "adder/ops/sampling/rng.h"
#include "adder/sampling.h"

namespace adder {

/// Throws adder::Error unless every parameter is in its range: temperature and top_k not negative,
/// top_p and min_p in [0, 1], repeat_penalty above 0.
void validate(const SamplingParams& params);

/// What sample_token needs besides; it grows to the vocabulary on first use and is then reused. The
/// contents mean nothing between calls.
struct SamplingWorkspace {
  struct Candidate {
    std::uint64_t weight;  ///< probability relative to the likeliest, see weights.h
    float logit;
    int id;
  };
  std::vector<float> logits;
  std::vector<int> recent;
  std::vector<Candidate> candidates;
};

/// Draws a token. `recent` are the token ids that repeat_penalty applies to, repetitions allowed.
int sample_token(std::span<const float> logits, const SamplingParams& params,
                 std::span<const int> recent, Rng& rng, SamplingWorkspace& workspace);

/// The id of the greatest logit; the lowest of equals.
int argmax(std::span<const float> logits);

/// probabilities = softmax(logits / temperature), temperature above 0; summed in float64.
void softmax(std::span<const float> logits, float temperature, std::span<float> probabilities);

/// Natural logarithms of softmax(logits), in float64.
void log_softmax(std::span<const float> logits, std::span<double> log_probabilities);

/// -log softmax(logits)[target] in nats, in float64: what scoring sums up.
double negative_log_likelihood(std::span<const float> logits, int target);

}  // namespace adder
