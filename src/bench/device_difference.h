#pragma once

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::bench {

inline constexpr int kDifferenceBlocks = 1024;

/// Partial sums over the n elements of (got - expected)² and expected², in float64: one pair for
/// each of kDifferenceBlocks blocks, the same in every run. T is float, bf16 or f16.
template <typename T>
void sum_squares(const T* got, const T* expected, std::int64_t n, double* sums,
                 cuda::Stream stream);

}  // namespace adder::bench
