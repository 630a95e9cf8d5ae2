// Work per token and head: about 40 vector instructions / kLanes for softplus, and one dependent
// float64 addition (4 cycles): 300 to 400 cycles for a chunk of 64 tokens, a hundredth of what the
// matrix products of that chunk take.

#include "ops/chunk_cumsum/kernels.h"

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

// NaN passes through: min and max return their second operand then.
ADDER_INLINE F32 time_step(F32 v, bool use_softplus, float dt_min, float dt_max) {
  if (use_softplus) v = softplus(v);
  return min(set1(dt_max), max(set1(dt_min), v));
}

void time_steps(const float* raw, const float* bias, bool use_softplus, float dt_min, float dt_max,
                float* dt, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = static_cast<int>(n - i < kLanes ? n - i : kLanes);
    F32 v = load_n(raw + i, lanes);
    if (bias != nullptr) v += load_n(bias + i, lanes);
    store_n(dt + i, time_step(v, use_softplus, dt_min, dt_max), lanes);
  }
}

void tile(const ChunkCumsumTile& t) {
  for (std::int64_t i = 0; i < t.length; ++i) t.dt[i] = t.dt_raw[i * t.dt_raw_stride] + t.dt_bias;
  time_steps(t.dt, nullptr, t.softplus, t.dt_min, t.dt_max, t.dt, t.length);

  constexpr double kLog2E = 1.4426950408889634074;
  constexpr double kFloor = -1024;
  const double scale = static_cast<double>(t.A) * kLog2E;
  double sum = 0;
  for (std::int64_t i = 0; i < t.length; ++i) {
    const double a = static_cast<double>(t.dt[i]) * scale;
    sum += a < kFloor ? kFloor : a;
    t.high[i] = static_cast<float>(sum);
    t.low[i] = static_cast<float>(sum - static_cast<double>(t.high[i]));
  }
  for (std::int64_t i = t.length; i < t.width; ++i) {
    t.dt[i] = 0;
    t.high[i] = t.high[t.length - 1];
    t.low[i] = t.low[t.length - 1];
  }
}

}  // namespace

const ChunkCumsumKernels& chunk_cumsum_kernels() {
  static constexpr ChunkCumsumKernels kKernels{tile, time_steps};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
