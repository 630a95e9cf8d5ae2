#pragma once

// What one token of the scan is made of on a CUDA device, shared by the scan and the step so that
// both turn a state into the same bits. T is the dtype of the inputs: for 16-bit ones the
// special-function unit is exact enough, for float32 its last two bits would add up in a state that
// remembers thousands of tokens.

#include <cfloat>

#include "cuda/math.cuh"

namespace adder::cuda {

/// `rate`, but finite if it is minus infinity, so that dt = 0 keeps a state whatever A is. NaN
/// stays NaN, which fmaxf would drop.
__device__ __forceinline__ float scan_rate(float rate) { return rate < -FLT_MAX ? -FLT_MAX : rate; }

/// 2^v, meant for v = dt · A · log2(e) <= 0. T 16 bits wide: to 2^-22, zero below 2^-126. T float:
/// to 1 ulp, zero below 2^-126.5, in 14 instructions of the FMA pipes. Exactly 1 at 0. NaN gives
/// NaN for a T of 16 bits, infinity for float.
template <typename T>
__device__ __forceinline__ float scan_decay(float v) {
  if constexpr (sizeof(T) < sizeof(float)) {
    return exp2_approx(v);
  } else {
    // 2^v = 2^n · 2^r with |r| <= 1/2. The sum with kRound has n + 127, the exponent of 2^n, in its
    // last bits; n = -127 gives the exponent of zero. fminf turns NaN into 2^128, infinity.
    constexpr float kRound = 12582912.0F + 127.0F;
    v = fmaxf(fminf(v, 128.0F), -127.0F);
    const float rounded = v + kRound;
    const float r = v - (rounded - kRound);
    const float scale = __uint_as_float(__float_as_uint(rounded) << 23);
    float p = 1.5196693e-4F;  // (2^r - 1) / r, fitted for the least relative error of 2^r: 4e-9
    p = fmaf(p, r, 1.3391305e-3F);
    p = fmaf(p, r, 9.619002e-3F);
    p = fmaf(p, r, 5.550359e-2F);
    p = fmaf(p, r, 2.4022643e-1F);
    p = fmaf(p, r, 6.931472e-1F);
    p = fmaf(p, r, 1.0F);
    return p * scale;
  }
}

/// log(1 + e^v). Relative error: for T float below 4e-7 down to the subnormal numbers; for a T of
/// 16 bits 2e-6 above v = -30 and 4e-6 above -87, with zero below. No branch, so that a thread's
/// values are computed side by side. NaN passes through.
template <typename T>
__device__ __forceinline__ float scan_softplus(float v) {
  // max(v, 0) + log(1 + e) with e = e^-|v| <= 1.
  float e;
  if constexpr (sizeof(T) < sizeof(float)) {
    e = exp2_approx(fabsf(v) * -kLog2E);
  } else {
    e = expf(-fabsf(v));
  }
  // log(1 + e) / e, fitted for the least relative error from 0 to 1: 1.3e-7 with rounding.
  float p = 0.00523269409F;
  p = fmaf(p, e, -0.0295052379F);
  p = fmaf(p, e, 0.0782259554F);
  p = fmaf(p, e, -0.136632457F);
  p = fmaf(p, e, 0.191060066F);
  p = fmaf(p, e, -0.24842982F);
  p = fmaf(p, e, 0.333190978F);
  p = fmaf(p, e, -0.499994934F);
  p = fmaf(p, e, 0.99999994F);
  return fmaf(e, p, fmaxf(v, 0.0F));
}

}  // namespace adder::cuda
