#include "bench/kernels.h"
#include "simd/simd.h"

namespace adder::bench::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kSums = 24;

ADDER_INLINE F32 dot(F32 sum, I32 a, I32 b) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<F32>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
#else
  return reinterpret_cast<F32>(vbfdotq_f32(reinterpret_cast<float32x4_t>(sum),
                                           reinterpret_cast<bfloat16x8_t>(a),
                                           reinterpret_cast<bfloat16x8_t>(b)));
#endif
}

std::int32_t dots(std::int64_t rounds, std::int32_t bytes) {
  // A number and its negative: sums stay where they are.
  const I32 pair = set1_i32(bytes);
  const I32 signs = set1_i32(static_cast<std::int32_t>(0xbf803f80u));  // -1, 1
  F32 sums[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sums[i] = set1(static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = dot(sums[i], pair, signs);
  }
  I32 total{};
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) total ^= bits_as_i32(sums[i]);
  std::int32_t out = 0;
  for (int i = 0; i < kLanes; ++i) out ^= total[i];
  return out;
}

}  // namespace

const ProductKernel& bf16_kernel() {
  static constexpr ProductKernel kKernel{dots, 2 * 2 * kSums * kLanes};
  return kKernel;
}

}  // namespace adder::bench::ADDER_TIER
