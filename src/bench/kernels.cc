#include "bench/kernels.h"

#include "simd/simd.h"

namespace adder::bench::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

// Enough sums to hide the latency of two (of four, on aarch64) FMA pipes, few enough for registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 24;
#else
constexpr int kSums = 12;
#endif

float fma(std::int64_t rounds, float scale) {
  const F32 factor = set1(scale);
  const F32 addend = set1(1.0F - scale);
  F32 sums[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) sums[i] = set1(scale + static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = simd::fma(sums[i], factor, addend);
  }
  F32 total = zero();
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) total += sums[i];
  return reduce_add(total);
}

float read(const float* data, std::int64_t n) {
  constexpr int kStreams = 8;
  constexpr int kLine = 16;      // floats of a cache line
  constexpr int kPrefetch = 16;  // lines ahead
  const std::int64_t stream = n / (kStreams * kLine) * kLine;
  F32 sums[kStreams] = {zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0; i < stream; i += kLine) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const float* line = data + s * stream + i;
      __builtin_prefetch(line + kPrefetch * kLine);
#pragma GCC unroll 4
      for (int v = 0; v < kLine; v += kLanes) sums[s] += load(line + v);
    }
  }
  return reduce_add(((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                    ((sums[4] + sums[5]) + (sums[6] + sums[7])));
}

}  // namespace

const MachineKernels& machine_kernels() {
  static constexpr MachineKernels kKernels{fma, 2 * kSums * kLanes, read};
  return kKernels;
}

}  // namespace adder::bench::ADDER_TIER
