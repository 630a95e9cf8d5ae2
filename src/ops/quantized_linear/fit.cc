#include "ops/quantized_linear/fit.h"

#include <algorithm>
#include <cmath>

#include "core/half.h"

namespace adder::cpu {
namespace {

constexpr int kBlock = 32;

// Adding and taking away 1.5 · 2^23 leaves the nearest integer: a loop of it is vectorized.
constexpr float kShift = 0x1.8p23F;

// The weight of the largest magnitude, the first of several.
float largest_of(std::span<const float> weights) {
  float largest = 0;
  for (float w : weights) {
    if (std::abs(w) > std::abs(largest)) largest = w;
  }
  return largest;
}

// A block padded with zeros, so that loops over it have a length that the compiler knows.
struct Block {
  float weights[kBlock] = {};
  float importance[kBlock] = {};
};

struct Candidate {
  float values[kBlock];  // integers
  float error;
  f16 scale;
};

float error_of(const Block& block, const float (&values)[kBlock], float scale) {
  float error = 0;
  for (int i = 0; i < kBlock; ++i) {
    const float miss = block.weights[i] - values[i] * scale;
    error += block.importance[i] * miss * miss;
  }
  return error;
}

// The integers nearest to the weights times `inverse`.
void round_to(const Block& block, float inverse, float (&values)[kBlock]) {
  for (int i = 0; i < kBlock; ++i) {
    const float scaled = std::clamp(block.weights[i] * inverse, -8.0F, 7.0F);
    values[i] = (scaled + kShift) - kShift;
  }
}

// The least-squares scale of the candidate's integers.
void fit_scale(const Block& block, Candidate& candidate) {
  float product = 0;
  float square = 0;
  for (int i = 0; i < kBlock; ++i) {
    const float weighted = block.importance[i] * candidate.values[i];
    product += weighted * block.weights[i];
    square += weighted * candidate.values[i];
  }
  candidate.scale = to_f16(square > 0 ? product / square : 0.0F);
  candidate.error = error_of(block, candidate.values, to_float(candidate.scale));
}

}  // namespace

FittedBlock fit_int8(std::span<const float> weights) {
  Block block;
  std::copy(weights.begin(), weights.end(), block.weights);
  float largest = 0;
  for (float w : block.weights) largest = std::max(largest, std::abs(w));
  FittedBlock out;
  out.scale = to_f16(largest / 127.0F);
  const float scale = to_float(out.scale);
  if (scale == 0) return out;
  for (int i = 0; i < kBlock; ++i) {
    const float value = std::clamp(block.weights[i] / scale, -127.0F, 127.0F);
    out.values[i] = static_cast<std::int8_t>(static_cast<int>((value + kShift) - kShift));
  }
  return out;
}

FittedBlock fit_int4(std::span<const float> weights, std::span<const float> importance) {
  FittedBlock out;
  const float largest = largest_of(weights);
  if (largest == 0) return out;
  Block block;
  std::copy(weights.begin(), weights.end(), block.weights);
  std::fill_n(block.importance, weights.size(), 1.0F);
  std::copy(importance.begin(), importance.end(), block.importance);

  Candidate best;
  best.scale = to_f16(largest / -8.0F);
  round_to(block, -8.0F / largest, best.values);
  best.error = error_of(block, best.values, to_float(best.scale));

  constexpr float kEnds[] = {-9.0F, -8.6F, -8.3F, -8.0F, -7.7F, -7.4F, -7.1F, -6.8F,
                             -6.4F, 6.0F,  6.3F,  6.6F,  6.9F,  7.2F,  7.6F,  8.0F};
  for (float end : kEnds) {
    if (best.error == 0) break;
    Candidate candidate;
    round_to(block, end / largest, candidate.values);
    fit_scale(block, candidate);
    if (candidate.error < best.error) best = candidate;
  }
  out.scale = best.scale;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    out.values[i] = static_cast<std::int8_t>(best.values[i]);
  }
  return out;
}

}  // namespace adder::cpu
