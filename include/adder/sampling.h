#pragma once

namespace adder {

/// How the next token is chosen from the logits. The steps apply in the order of the members (see
/// ops/sampling/sampling.h for their sources).
struct SamplingParams {
  /// Above 0. Above 1, tokens among the recent ones become less likely (positive logits are divided
  /// by it, negative ones multiplied). 1 is off.
  float repeat_penalty = 1.0F;
  /// Not negative; divides the logits. 0 takes the most likely token (greedy; ties go to the lowest
  /// id).
  float temperature = 0.8F;
  /// Keeps the k most likely tokens. 0 is off.
  int top_k = 40;
  /// Keeps the smallest set of most likely tokens whose probabilities reach this sum. 1 is off.
  float top_p = 0.95F;
  /// Keeps tokens at least this fraction as probable as the most likely one. 0 is off.
  float min_p = 0.05F;
};

}  // namespace adder
