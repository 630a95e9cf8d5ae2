#pragma once

// Weights of tokens as integers. Sums of integers do not depend on the order of their terms, so
// that any number of threads of any device comes to the same decisions. Everything here is also
// compiled for CUDA devices; no multiply-add may be fused anywhere (see portable_exp.h).

#include <algorithm>
#include <cstdint>

#include "ops/sampling/portable_exp.h"

namespace adder {

/// The weight of the likeliest of `vocab_size` tokens: the power of two that keeps the sum of all
/// weights below 2^63, but at most 2^52, so that a weight is an exact double. 2^47 for 50,280
/// tokens: what is less likely than the likeliest by more than 2^48 has no weight.
constexpr double weight_scale(std::uint64_t vocab_size) {
  int bits = 63;
  for (; vocab_size > 0; vocab_size >>= 1) --bits;  // std::bit_width is wrong in device code
  return static_cast<double>(std::uint64_t{1} << (bits < 52 ? bits : 52));
}

/// The weight of a token: e^((logit - max) / temperature) in units of 1 / scale, rounded.
/// `inverse_temperature` is 1.0 / temperature in float64.
constexpr std::uint64_t token_weight(float logit, float max, double inverse_temperature,
                                     double scale) {
  const double distance = static_cast<double>(logit) - static_cast<double>(max);
  const double half_up = portable_exp(distance * inverse_temperature) * scale + 0.5;
  // By way of a signed integer: one instruction on every CPU.
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(half_up));
}

/// The least sum of weights that is `top_p`, below 1, of `sum`; at least 1.
constexpr std::uint64_t top_p_weight(float top_p, std::uint64_t sum) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(sum);
  const auto whole = static_cast<std::uint64_t>(wanted);
  const std::uint64_t up = static_cast<double>(whole) < wanted ? whole + 1 : whole;
  return up > 0 ? up : 1;
}

/// The least weight that is `min_p` of the likeliest token's.
constexpr std::uint64_t min_p_weight(float min_p, double scale) {
  const double wanted = static_cast<double>(min_p) * scale;  // exact
  const auto whole = static_cast<std::uint64_t>(wanted);
  return static_cast<double>(whole) < wanted ? whole + 1 : whole;
}

/// Uniform in [0, sum), from a number that is uniform over all 64-bit numbers: the upper half of
/// their product. A draw is the first token up to which the weights sum to more than this.
constexpr std::uint64_t drawn_weight(std::uint64_t random, std::uint64_t sum) {
  constexpr std::uint64_t kLow = 0xffffffffu;
  const std::uint64_t middle =
      (random >> 32) * (sum & kLow) + ((random & kLow) * (sum & kLow) >> 32);
  const std::uint64_t other = (random & kLow) * (sum >> 32) + (middle & kLow);
  return (random >> 32) * (sum >> 32) + (middle >> 32) + (other >> 32);
}

}  // namespace adder
