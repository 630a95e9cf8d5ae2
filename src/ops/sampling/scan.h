#pragma once

#include <span>
#include <string_view>

namespace adder {

/// The greatest logit. Throws adder::Error in the name of `op` if there are none, one is NaN or
/// +inf, or all are -inf.
float checked_max(std::string_view op, std::span<const float> logits);

}  // namespace adder
