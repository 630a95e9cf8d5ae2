// Work per row: 4 · d_model flops over 3 to 4 passes of d_model floats, which for model widths
// (up to 16 KB a row) stay in L1: bound by reading x and residual and writing residual and y once.

#include "ops/rms_norm/kernels.h"

#include <cmath>

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

void row(float* residual, const float* x, const float* weight, float epsilon, float* y,
         std::int64_t d_model) {
  // Four partial sums: enough to cover the latency of an FMA, and a smaller rounding error.
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  const auto accumulate = [&](std::int64_t i, int n, F32& sum) __attribute__((always_inline)) {
    F32 r = n == kLanes ? load(residual + i) : load_n(residual + i, n);
    if (x != nullptr) {
      r += n == kLanes ? load(x + i) : load_n(x + i, n);
      n == kLanes ? store(residual + i, r) : store_n(residual + i, r, n);
    }
    sum = fma(r, r, sum);
  };
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= d_model; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) accumulate(i + k * kLanes, kLanes, sums[k]);
  }
  for (; i + kLanes <= d_model; i += kLanes) accumulate(i, kLanes, sums[0]);
  if (i < d_model) accumulate(i, static_cast<int>(d_model - i), sums[1]);
  const float total = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));

  const F32 scale = set1(1.0F / std::sqrt(total / static_cast<float>(d_model) + epsilon));
  for (i = 0; i + kLanes <= d_model; i += kLanes) {
    const F32 normalized = load(residual + i) * scale;
    store(y + i, weight != nullptr ? normalized * load(weight + i) : normalized);
  }
  if (i < d_model) {
    const int n = static_cast<int>(d_model - i);
    const F32 normalized = load_n(residual + i, n) * scale;
    store_n(y + i, weight != nullptr ? normalized * load_n(weight + i, n) : normalized, n);
  }
}

}  // namespace

const RmsNormKernels& rms_norm_kernels() {
  static constexpr RmsNormKernels kKernels{row};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
