#pragma once

#include <cstdint>
#include <vector>

#include "adder/model.h"

namespace adder::cli {

/// Decodes `batch` sequences together, greedily, `tokens` tokens each after the first,
/// which are all different. Seconds per step of each turn of `turn` steps.
std::vector<double> decode_batch(const Model& model, std::int64_t batch, std::int64_t tokens,
                                 std::int64_t turn);

}  // namespace adder::cli
