#pragma once

// dt from its raw value, on a CUDA device.

#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::cuda {

/// Of dt_raw + dt_bias. NaN passes through.
__device__ __forceinline__ float time_step(float v, const DtOptions& options) {
  if (options.softplus && v <= 20.0F) v = log1pf(expf(v));
  v = v < options.min ? options.min : v;
  return v > options.max ? options.max : v;
}

}  // namespace adder::cuda
