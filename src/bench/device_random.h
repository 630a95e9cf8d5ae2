#pragma once

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::bench {

struct Distribution {
  bool normal = true;  ///< of mean 0 and deviation 1, else uniform between the bounds
  float low = 0;
  float high = 1;
  std::uint64_t seed = 0;
};

/// Fills device memory; element i depends on the seed and on i alone. T is float, bf16 or f16.
template <typename T>
void fill_random(T* data, std::int64_t n, const Distribution& distribution, cuda::Stream stream);

}  // namespace adder::bench
