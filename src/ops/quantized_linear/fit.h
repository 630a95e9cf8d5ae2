#pragma once

// Integers and a scale for one block of a weight.

#include <cstdint>
#include <span>

#include "adder/dtype.h"

namespace adder::cpu {

/// `values[i] · scale` stands for the weights.
struct FittedBlock {
  f16 scale{};
  std::int8_t values[32] = {};
};

/// `weights`: at most 32, finite, of magnitudes for which a scale in f16 exists. Values from -127
/// to 127 with the scale max |w| / 127.
FittedBlock fit_int8(std::span<const float> weights);

/// Values from -8 to 7. `importance` is as long as `weights` or empty.
///
/// The least-squares scale of given integers is Σ p w q / Σ p q² (p the importance). Integers are
/// those of some scales around max |w| / 8: with the largest weight at -8, the end that reaches
/// further, and at 7; a scale smaller than that cuts off the largest weights and rounds all others
/// more finely. Of all of these the one with the least Σ p (w - q · scale)² is taken, the first
/// being the one whose largest weight is -8 · scale. So weights that are integers times such a
/// scale, as those of GGUF's Q4_0, come out as they were.
FittedBlock fit_int4(std::span<const float> weights, std::span<const float> importance);

}  // namespace adder::cpu
