#pragma once

// Dot products of four codes by four signed bytes in each 32-bit lane, with what the tier has for
// them. Like simd.h, only for kernels files.
//
// Where bytes are multiplied signed by signed, codes are taken as c - kCodeOffset. Since
// Σ (c - zero) · x = Σ (c - kCodeOffset) · x + (kCodeOffset - zero) · Σ x, only what the sums start
// from depends on it.

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {

using simd::I32;

ADDER_INLINE I32 load_i32(const void* p) {
  I32 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
ADDER_INLINE std::int32_t load_word(const std::int8_t* p) {
  std::int32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__aarch64__)

#if defined(__aarch64__) && !defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr std::int32_t kCodeOffset = 128;
#else
inline constexpr std::int32_t kCodeOffset = 0;
#endif

/// Four signed bytes in each lane.
struct Bytes {
  I32 all;
  static ADDER_INLINE Bytes broadcast(const std::int8_t* p) {
    return {simd::set1_i32(load_word(p))};
  }
};
/// Four codes in each lane.
struct Codes {
  I32 all;
  static ADDER_INLINE Codes of(I32 v) {
    if constexpr (kCodeOffset == 128) v ^= static_cast<std::int32_t>(0x80808080u);
    return {v};
  }
};
/// sum + Σ (codes - kCodeOffset) · bytes, lane by lane.
ADDER_INLINE I32 dot(I32 sum, Codes codes, Bytes bytes) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<I32>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                   reinterpret_cast<__m512i>(codes.all),
                                                   reinterpret_cast<__m512i>(bytes.all)));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<I32>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum),
                                                       reinterpret_cast<__m256i>(codes.all),
                                                       reinterpret_cast<__m256i>(bytes.all)));
#else
  const int32x4_t from = reinterpret_cast<int32x4_t>(sum);
  const int8x16_t b = reinterpret_cast<int8x16_t>(bytes.all);
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return reinterpret_cast<I32>(vusdotq_s32(from, reinterpret_cast<uint8x16_t>(codes.all), b));
#else
  const int8x16_t c = reinterpret_cast<int8x16_t>(codes.all);
#if defined(__ARM_FEATURE_DOTPROD)
  return reinterpret_cast<I32>(vdotq_s32(from, c, b));
#else
  // Two products, at most 128 · 127 each, fit into 16 bits together.
  const int16x8_t low = vmull_s8(vget_low_s8(c), vget_low_s8(b));
  const int16x8_t high = vmull_high_s8(c, b);
  return reinterpret_cast<I32>(vpadalq_s16(from, vpaddq_s16(low, high)));
#endif
#endif
#endif
}

#else

inline constexpr std::int32_t kCodeOffset = 0;

typedef std::int16_t I16 __attribute__((vector_size(simd::kLanes * 4)));
typedef std::uint16_t U16 __attribute__((vector_size(simd::kLanes * 4)));

// Σ of the two products in each lane.
ADDER_INLINE I32 multiply_pairs(I16 a, I16 b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<I32>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<I32>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<I32>(
      _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const I32 low_a = (reinterpret_cast<I32>(a) << 16) >> 16;
  const I32 low_b = (reinterpret_cast<I32>(b) << 16) >> 16;
  return low_a * low_b + (reinterpret_cast<I32>(a) >> 16) * (reinterpret_cast<I32>(b) >> 16);
#endif
}

// Two multiply-adds of 16-bit pairs, for even and for odd bytes; the instruction that multiplies
// unsigned by signed bytes saturates its sums at 16 bits.
struct Bytes {
  I16 even, odd;
  static ADDER_INLINE Bytes broadcast(const std::int8_t* p) {
    const I16 v = reinterpret_cast<I16>(simd::set1_i32(load_word(p)));
    return {(v << 8) >> 8, v >> 8};
  }
};
struct Codes {
  I16 even, odd;
  static ADDER_INLINE Codes of(I32 v) {
    const U16 u = reinterpret_cast<U16>(v);
    return {reinterpret_cast<I16>(u & 0xff), reinterpret_cast<I16>(u >> 8)};
  }
};
ADDER_INLINE I32 dot(I32 sum, Codes codes, Bytes bytes) {
  return sum + (multiply_pairs(codes.even, bytes.even) + multiply_pairs(codes.odd, bytes.odd));
}

#endif

}  // namespace adder::cpu::ADDER_TIER
