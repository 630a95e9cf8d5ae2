#pragma once

// Vectors of a row that may end within them. Like simd.h, only for kernels files.

#include "simd/simd.h"

namespace adder::simd {
inline namespace ADDER_TIER {

/// The vector at element `i` of a row of `n`; zero where the row has ended.
ADDER_INLINE F32 load_within(const float* row, std::int64_t i, std::int64_t n) {
  if (i + kLanes <= n) return load(row + i);
  return i < n ? load_n(row + i, static_cast<int>(n - i)) : zero();
}
/// Stores what of the vector at element `i` lies within a row of `n`.
ADDER_INLINE void store_within(float* row, std::int64_t i, std::int64_t n, F32 value) {
  if (i + kLanes <= n) {
    store(row + i, value);
  } else if (i < n) {
    store_n(row + i, value, static_cast<int>(n - i));
  }
}

}  // namespace ADDER_TIER
}  // namespace adder::simd
