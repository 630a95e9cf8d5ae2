#pragma once

// dt of a head, for the fused Hopper kernel. See hopper_kernel.cuh.

#include <cstdint>

#include "ops/chunk_cumsum/time_step.cuh"
#include "ops/ssd_forward/hopper_layout.cuh"

namespace adder::cuda::hopper {

__device__ inline float log_decay(float dt, float A_log2) {
  const float a = dt * A_log2;
  return a < kMinLogDecay ? kMinLogDecay : a;
}

/// dt of a head as it is stored, and as the time step it stands for.
template <typename T>
class TimeSteps {
 public:
  /// Of a unit that exists; zero behind the sequence.
  __device__ TimeSteps(const Params& p, const Place& place, const Unit& unit)
      : p_(p),
        base_(place.batch * p.dt_strides.batch + unit.head * p.dt_strides.head),
        end_(place.end_token),
        bias_(p.dt_bias != nullptr ? p.dt_bias[unit.head] : 0.0F) {}

  __device__ std::uint32_t bits(int token) const {
    if (token >= end_) return 0;
    const std::int64_t offset = base_ + token * p_.dt_strides.token;
    return p_.dt_is_float ? static_cast<const std::uint32_t*>(p_.dt)[offset]
                          : static_cast<const std::uint16_t*>(p_.dt)[offset];
  }
  __device__ float value(std::uint32_t bits, int token) const {
    const float raw = p_.dt_is_float ? __uint_as_float(bits) : unpack<T>(bits).x;
    return token < end_ ? time_step(raw + bias_, p_.dt_options) : 0.0F;
  }

 private:
  const Params& p_;
  const std::int64_t base_;
  const int end_;
  const float bias_;
};

}  // namespace adder::cuda::hopper
