#pragma once

// The meaning of embedding, in plain loops.

#include <cstdint>
#include <span>

#include "core/half.h"

namespace adder::ref {

/// `weight` is (vocab_rows, d_model), `y` (ntokens, d_model), both contiguous.
template <typename Real, typename Weight>
void embedding(std::span<const std::int32_t> ids, std::span<const Weight> weight,
               std::size_t d_model, std::span<Real> y) {
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (std::size_t i = 0; i < d_model; ++i) {
      const auto row = static_cast<std::size_t>(ids[t]);
      y[t * d_model + i] = static_cast<Real>(to_float(weight[row * d_model + i]));
    }
  }
}

}  // namespace adder::ref
