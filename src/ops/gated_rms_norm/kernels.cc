// Work per element: y and z read, out written, once each from memory (12 bytes); the second pass of
// a group finds its up to 20 KB in L1. One exponential, one division and about 5 more flops.

#include "ops/gated_rms_norm/kernels.h"

#include <cmath>

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

ADDER_INLINE F32 load_lanes(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
ADDER_INLINE void store_lanes(float* p, F32 v, int n) {
  n == kLanes ? store(p, v) : store_n(p, v, n);
}

// Sums the squares of the vectors that `value(i, lanes)` returns, lanes beyond the end being zero,
// and returns 1 / sqrt(mean + epsilon).
template <typename Value>
ADDER_INLINE F32 inverse_rms(std::int64_t n, float epsilon, Value&& value) {
  // Four partial sums: enough to cover the latency of an FMA, and a smaller rounding error.
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      const F32 v = value(i + k * kLanes, kLanes);
      sums[k] = fma(v, v, sums[k]);
    }
  }
  for (; i < n; i += kLanes) {
    const F32 v = value(i, n - i < kLanes ? static_cast<int>(n - i) : kLanes);
    sums[0] = fma(v, v, sums[0]);
  }
  const float total = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return set1(1.0F / std::sqrt(total / static_cast<float>(n) + epsilon));
}

// Calls body(i, lanes) for vectors that cover [0, n).
template <typename Body>
ADDER_INLINE void for_each_vector(std::int64_t n, Body&& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, static_cast<int>(n - i));
}

void gate_then_norm(const float* y, const float* z, const float* weight, float epsilon, float* out,
                    std::int64_t n) {
  const auto gated = [&](std::int64_t i, int lanes) __attribute__((always_inline)) {
    F32 v = load_lanes(y + i, lanes);
    if (z != nullptr) v *= silu(load_lanes(z + i, lanes));
    store_lanes(out + i, v, lanes);
    return v;
  };
  const F32 scale = inverse_rms(n, epsilon, gated);
  const auto normalize = [&](std::int64_t i, int lanes) __attribute__((always_inline)) {
    F32 v = load_lanes(out + i, lanes) * scale;
    if (weight != nullptr) v *= load_lanes(weight + i, lanes);
    store_lanes(out + i, v, lanes);
  };
  for_each_vector(n, normalize);
}

void norm_then_gate(const float* y, const float* z, const float* weight, float epsilon, float* out,
                    std::int64_t n) {
  const auto plain = [&](std::int64_t i, int lanes) __attribute__((always_inline)) {
    return load_lanes(y + i, lanes);
  };
  const F32 scale = inverse_rms(n, epsilon, plain);
  const auto normalize = [&](std::int64_t i, int lanes) __attribute__((always_inline)) {
    F32 v = load_lanes(y + i, lanes) * scale;
    if (weight != nullptr) v *= load_lanes(weight + i, lanes);
    if (z != nullptr) v *= silu(load_lanes(z + i, lanes));
    store_lanes(out + i, v, lanes);
  };
  for_each_vector(n, normalize);
}

void gate(const float* y, const float* z, float* out, std::int64_t n) {
  const auto multiply = [&](std::int64_t i, int lanes) __attribute__((always_inline)) {
    store_lanes(out + i, load_lanes(y + i, lanes) * silu(load_lanes(z + i, lanes)), lanes);
  };
  for_each_vector(n, multiply);
}

}  // namespace

const GatedRmsNormKernels& gated_rms_norm_kernels() {
  static constexpr GatedRmsNormKernels kKernels{gate_then_norm, norm_then_gate, gate};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
