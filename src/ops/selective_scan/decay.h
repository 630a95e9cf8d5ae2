#pragma once

// The one transcendental function in the inner loop of Mamba-1, shared by the scan and the step so
// that both turn a state into the same bits. Only for kernels.cc files.

#include "simd/simd.h"

namespace adder::simd {
inline namespace ADDER_TIER {

/// 2^v, meant for v = dt · A · log2(e) <= 0: relative error at most 1 ulp where the result is a
/// normal number, 0 below 2^-126, exactly 1 at 0, NaN for NaN. Above 127.5 it overflows.
ADDER_INLINE F32 decay(F32 v) {
  // 2^v = 2^n · 2^r with |r| <= 1/2; r is exact. The polynomial is (2^r - 1) / r fitted for the
  // least relative error of 2^r, which is 4e-9.
#if defined(__AVX512F__)
  const F32 n = round_small(v);
#else
  // max and min return their second argument if it is NaN.
  v = min(set1(128.0F), max(set1(-127.0F), v));
  const F32 n = round_small(v);
#endif
  const F32 r = v - n;
  F32 p = set1(1.5196693e-4F);
  p = fma(p, r, set1(1.3391305e-3F));
  p = fma(p, r, set1(9.619002e-3F));
  p = fma(p, r, set1(5.550359e-2F));
  p = fma(p, r, set1(2.4022643e-1F));
  p = fma(p, r, set1(6.931472e-1F));
  p = fma(p, r, set1(1.0F));
#if defined(__AVX512F__)
  const __mmask16 normal =
      _mm512_cmp_ps_mask(reinterpret_cast<__m512>(v), _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return reinterpret_cast<F32>(
      _mm512_maskz_scalef_ps(normal, reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  const F32 scaled = p * bits_as_f32((to_i32(n) + 127) << 23);
  return select(v < set1(-126.0F), zero(), scaled);
#endif
}

/// h · a + b with b rounded first: the same bits wherever it is compiled into.
ADDER_INLINE F32 advance(F32 h, F32 a, F32 b) {
#if defined(__AVX512F__)
  return reinterpret_cast<F32>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(h), reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__FMA__)
  return reinterpret_cast<F32>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(h), reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return h * a + b;
#endif
}

}  // namespace ADDER_TIER
}  // namespace adder::simd
