#pragma once

// dt from its raw value, on a CUDA device.

#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::cuda {

/// log(1 + e) for e >= 0, with a relative error below 2e-7 however small e is. Not log1pf: that has
/// a branch, which keeps the steps of several tokens from being computed side by side.
__device__ __forceinline__ float log1p_of_positive(float e) {
  // 1 + e = 2^k (1 + f) with f in [-1/4, 1/2]; f comes from e, not from the rounded sum.
  const int shift = (__float_as_int(1.0F + e) - 0x3f400000) & static_cast<int>(0xff800000);  // k
  const float scale = __int_as_float(0x3f800000 - shift);                                    // 2^-k
  const float f = fmaf(e, scale, scale - 1.0F);
  // (log(1 + f) - f) / f^2, fitted there for the least relative error of the whole.
  float p = 0.0541323088F;
  p = fmaf(p, f, -0.120673545F);
  p = fmaf(p, f, 0.149839163F);
  p = fmaf(p, f, -0.168228135F);
  p = fmaf(p, f, 0.199770778F);
  p = fmaf(p, f, -0.24993442F);
  p = fmaf(p, f, 0.333335489F);
  p = fmaf(p, f, -0.500000596F);
  const float log_f = fmaf(f * f, p, f);
  constexpr float kLog2PerBit = 0.693147181F / 8388608.0F;  // of a shift of the exponent
  return fmaf(static_cast<float>(shift), kLog2PerBit, log_f);
}

/// Of dt_raw + dt_bias. NaN passes through.
__device__ __forceinline__ float time_step(float v, const DtOptions& options) {
  if (options.softplus) v = v <= 20.0F ? log1p_of_positive(expf(v)) : v;
  v = v < options.min ? options.min : v;
  return v > options.max ? options.max : v;
}

}  // namespace adder::cuda
