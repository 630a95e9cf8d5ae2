#include "bench/kernels.h"
#include "ops/quantized_linear/dot.h"
#include "simd/simd.h"

namespace adder::bench::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

// Enough sums to hide the latency of the dot product, few enough for registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 24;
#else
constexpr int kSums = 12;
#endif

std::int32_t dots(std::int64_t rounds, std::int32_t bytes) {
  const cpu::ADDER_TIER::Codes codes = cpu::ADDER_TIER::Codes::of(set1_i32(bytes));
  std::int8_t four[4];
  std::memcpy(four, &bytes, sizeof(four));
  const cpu::ADDER_TIER::Bytes other = cpu::ADDER_TIER::Bytes::broadcast(four);
  I32 sums[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sums[i] = set1_i32(i);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = cpu::ADDER_TIER::dot(sums[i], codes, other);
  }
  I32 total{};
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) total ^= sums[i];
  std::int32_t out = 0;
  for (int i = 0; i < kLanes; ++i) out ^= total[i];
  return out;
}

}  // namespace

const ProductKernel& int8_kernel() {
  static constexpr ProductKernel kKernel{dots, 2 * 4 * kSums * kLanes};
  return kKernel;
}

}  // namespace adder::bench::ADDER_TIER
