#pragma once

// The vocabulary that CPU kernels are written in: one vector of floats, as wide as the tier's
// registers, with loads that widen bf16 and f16, and the transcendental functions of state-space
// models. Only kernels.cc files include this header. It is compiled once per tier into a namespace
// of that tier, and everything in it is forced inline, so that no function compiled with AVX-512
// can be picked by the linker for a baseline caller.
//
// Arithmetic operators (+ - * /) and comparisons work on F32 directly: it is a GCC/Clang vector.

#include <cstdint>
#include <cstring>

#include "adder/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef ADDER_TIER
#error "kernels are compiled through adder_add_op, which defines ADDER_TIER"
#endif

#define ADDER_INLINE inline __attribute__((always_inline))

namespace adder::simd {
inline namespace ADDER_TIER {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float F32 __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t I32 __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t U32 __attribute__((vector_size(kLanes * 4)));

// v - 0 is v for every v (v + 0 is not, for -0), so this is a broadcast and no addition.
ADDER_INLINE F32 set1(float v) { return v - F32{}; }
ADDER_INLINE I32 set1_i32(std::int32_t v) { return I32{} + v; }
ADDER_INLINE F32 zero() { return F32{}; }
ADDER_INLINE F32 bits_as_f32(I32 v) { return reinterpret_cast<F32>(v); }
ADDER_INLINE I32 bits_as_i32(F32 v) { return reinterpret_cast<I32>(v); }

// ---- loads and stores (any alignment) ----------------------------------------------------------

ADDER_INLINE F32 load(const float* p) {
  F32 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
ADDER_INLINE void store(float* p, F32 v) { std::memcpy(p, &v, sizeof(v)); }

ADDER_INLINE F32 load(const bf16* p) {
#if defined(__AVX512F__)
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return reinterpret_cast<F32>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#elif defined(__AVX2__)
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<F32>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#elif defined(__aarch64__)
  return reinterpret_cast<F32>(vshll_n_u16(vld1_u16(&p->bits), 16));
#else
  U32 v;
  for (int i = 0; i < kLanes; ++i) v[i] = std::uint32_t{p[i].bits} << 16;
  return reinterpret_cast<F32>(v);
#endif
}

ADDER_INLINE void store(bf16* p, F32 v) {
  // Round to nearest even; NaN becomes a quiet NaN.
  const U32 bits = reinterpret_cast<U32>(v);
  const U32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U32 quiet = (bits >> 16) | 0x40u;
  const I32 is_nan = v != v;
  const U32 out =
      (rounded & ~reinterpret_cast<U32>(is_nan)) | (quiet & reinterpret_cast<U32>(is_nan));
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(out)));
#elif defined(__aarch64__)
  vst1_u16(&p->bits, vmovn_u32(reinterpret_cast<uint32x4_t>(out)));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = static_cast<std::uint16_t>(out[i]);
#endif
}

ADDER_INLINE F32 load(const f16* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<F32>(
      _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return reinterpret_cast<F32>(
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  return reinterpret_cast<F32>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))));
#else
  // Exponent re-bias by a multiplication handles subnormals; infinities and NaN are patched.
  U32 bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = p[i].bits;
  const U32 sign = (bits & 0x8000u) << 16;
  const U32 magnitude = (bits & 0x7fffu) << 13;
  const U32 scaled = reinterpret_cast<U32>(reinterpret_cast<F32>(magnitude) * 0x1p112F);
  const U32 special = reinterpret_cast<U32>(magnitude >= 0x0f800000u);
  const U32 value = (scaled & ~special) | ((magnitude | 0x7f800000u) & special);
  return reinterpret_cast<F32>(value | sign);
#endif
}

ADDER_INLINE void store(f16* p, F32 v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(reinterpret_cast<float32x4_t>(v))));
#else
  const U32 bits = reinterpret_cast<U32>(v);
  for (int i = 0; i < kLanes; ++i) {
    const std::uint32_t sign = (bits[i] >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits[i] & 0x7fffffffu;
    std::uint32_t out = 0;
    if (magnitude > 0x7f800000u) {
      out = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {
      out = 0x7c00u;
    } else if (magnitude < 0x38800000u) {
      float value;
      std::memcpy(&value, &magnitude, 4);
      value += 0.5F;
      std::uint32_t sum;
      std::memcpy(&sum, &value, 4);
      out = sum - 0x3f000000u;
    } else {
      out = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    }
    p[i].bits = static_cast<std::uint16_t>(sign | out);
  }
#endif
}

// The first `n` elements, 0 <= n <= kLanes; the other lanes read as zero and are never touched in
// memory.
template <typename T>
ADDER_INLINE F32 load_n(const T* p, int n) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<std::size_t>(n) * sizeof(T));
  return load(buffer);
}
template <typename T>
ADDER_INLINE void store_n(T* p, F32 v, int n) {
  T buffer[kLanes];
  store(buffer, v);
  std::memcpy(p, buffer, static_cast<std::size_t>(n) * sizeof(T));
}
#if defined(__AVX512F__)
ADDER_INLINE F32 load_n(const float* p, int n) {
  return reinterpret_cast<F32>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p));
}
ADDER_INLINE void store_n(float* p, F32 v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512>(v));
}
#endif

// ---- arithmetic --------------------------------------------------------------------------------

/// a · b + c, in one rounding where the tier has FMA.
ADDER_INLINE F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
ADDER_INLINE F32 fma(float a, F32 b, F32 c) { return set1(a) * b + c; }

ADDER_INLINE F32 select(I32 mask, F32 yes, F32 no) {
  return bits_as_f32((bits_as_i32(yes) & mask) | (bits_as_i32(no) & ~mask));
}
/// The smaller; `b` where `a` is NaN.
ADDER_INLINE F32 min(F32 a, F32 b) {
#if defined(__AVX512F__)
  return reinterpret_cast<F32>(
      _mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<F32>(
      _mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return select(a < b, a, b);
#endif
}
/// The larger; `b` where `a` is NaN.
ADDER_INLINE F32 max(F32 a, F32 b) {
#if defined(__AVX512F__)
  return reinterpret_cast<F32>(
      _mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<F32>(
      _mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return select(a > b, a, b);
#endif
}
ADDER_INLINE F32 abs(F32 v) { return bits_as_f32(bits_as_i32(v) & 0x7fffffff); }

/// Sums by halves: (lower half + upper half), and again. Every tier of one width sums in one order.
ADDER_INLINE float reduce_add(F32 v) {
  typedef float F32x4 __attribute__((vector_size(16)));
  F32x4 parts[kLanes / 4];
  std::memcpy(parts, &v, sizeof(v));
  if constexpr (kLanes == 16) {
    parts[0] += parts[2];
    parts[1] += parts[3];
  }
  if constexpr (kLanes >= 8) parts[0] += parts[1];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}
ADDER_INLINE float reduce_max(F32 v) {
  typedef float F32x4 __attribute__((vector_size(16)));
  F32x4 parts[kLanes / 4];
  std::memcpy(parts, &v, sizeof(v));
  const auto larger = [](F32x4 a, F32x4 b) __attribute__((always_inline)) { return a > b ? a : b; };
  if constexpr (kLanes == 16) {
    parts[0] = larger(parts[0], parts[2]);
    parts[1] = larger(parts[1], parts[3]);
  }
  if constexpr (kLanes >= 8) parts[0] = larger(parts[0], parts[1]);
  float best = parts[0][0];
  for (int i = 1; i < 4; ++i) best = parts[0][i] > best ? parts[0][i] : best;
  return best;
}

/// 1 / v of normal numbers, to 1 ulp. With 512 bits a division takes 16 cycles or more, this 2.
ADDER_INLINE F32 reciprocal(F32 v) {
#if defined(__AVX512F__)
  const F32 rough = reinterpret_cast<F32>(_mm512_rcp14_ps(reinterpret_cast<__m512>(v)));
  return fma(rough, fma(-v, rough, set1(1.0F)), rough);
#else
  return set1(1.0F) / v;
#endif
}

// ---- transcendental functions ------------------------------------------------------------------

/// Nearest integer (ties to even) of |v| < 2^22, as a float.
ADDER_INLINE F32 round_small(F32 v) {
#if defined(__AVX512F__)
  return reinterpret_cast<F32>(_mm512_roundscale_ps(reinterpret_cast<__m512>(v), 0));
#elif defined(__AVX2__)
  return reinterpret_cast<F32>(
      _mm256_round_ps(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
  return reinterpret_cast<F32>(vrndnq_f32(reinterpret_cast<float32x4_t>(v)));
#else
  const F32 magic = set1(0x1.8p23F);
  F32 shifted = v + magic;
  asm("" : "+x"(shifted));  // keeps the pair of additions from being folded away
  return shifted - magic;
#endif
}
ADDER_INLINE I32 to_i32(F32 v) { return __builtin_convertvector(v, I32); }

/// e^v. Relative error at most 2 ulp where the result is a normal number; results below 2^-126 are
/// zero (an underflowed decay forgets, which is what it should do); +inf above 88.72; NaN stays.
ADDER_INLINE F32 exp(F32 v) {
  // min and max return their second argument where it is NaN, which so reaches the result.
  const F32 x = min(set1(89.0F), max(set1(-104.0F), v));
  const F32 n = round_small(x * set1(1.44269504088896341F));
  // ln 2 in two parts: n · high is exact.
  F32 r = x - n * set1(0.693359375F);
  r = r + n * set1(2.12194440e-4F);
  F32 p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  p = fma(p, r * r, r) + set1(1.0F);
#if defined(__AVX512F__)
  const __mmask16 normal =
      _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(-87.33654F), _CMP_NLT_UQ);
  return reinterpret_cast<F32>(
      _mm512_maskz_scalef_ps(normal, reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  // 2^n in two factors, since n reaches 128.
  const I32 ni = to_i32(n);
  const I32 half = ni >> 1;
  const F32 scaled = p * bits_as_f32((half + 127) << 23) * bits_as_f32((ni - half + 127) << 23);
  return select(x < set1(-87.33654F), zero(), scaled);
#endif
}

/// ln(1 + u) for 0 <= u <= 1; relative error at most 3 ulp (no cancellation for tiny u).
ADDER_INLINE F32 log1p_unit(F32 u) {
  // 2 atanh(t), t = u / (2 + u) <= 1/3: an odd series, truncated where it falls below 2^-27.
  const F32 t = u * reciprocal(u + set1(2.0F));
  const F32 s = t * t;
  F32 p = set1(2.0F / 17.0F);
  p = fma(p, s, set1(2.0F / 15.0F));
  p = fma(p, s, set1(2.0F / 13.0F));
  p = fma(p, s, set1(2.0F / 11.0F));
  p = fma(p, s, set1(2.0F / 9.0F));
  p = fma(p, s, set1(2.0F / 7.0F));
  p = fma(p, s, set1(2.0F / 5.0F));
  p = fma(p, s, set1(2.0F / 3.0F));
  return fma(p * s, t, t + t);
}

/// ln(1 + e^v), equal to v above 20 as in the reference implementations.
ADDER_INLINE F32 softplus(F32 v) {
  const F32 tail = log1p_unit(exp(-abs(v)));
  return select(v > set1(20.0F), v, max(v, zero()) + tail);
}

/// 1 / (1 + e^-v), to 4 ulp; below -88, where it would leave the normal numbers, as at -88.
ADDER_INLINE F32 sigmoid(F32 v) {
  // max returns its second argument where that is NaN.
  return reciprocal(set1(1.0F) + exp(-max(set1(-88.0F), v)));
}

/// v · sigmoid(v); nearly zero, as at -88, below it.
ADDER_INLINE F32 silu(F32 v) { return max(set1(-88.0F), v) * sigmoid(v); }

}  // namespace ADDER_TIER
}  // namespace adder::simd
