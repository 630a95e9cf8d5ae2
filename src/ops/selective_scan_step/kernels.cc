// Work per channel and state: one exponential and 5 flops against 12 bytes: A read, the state read
// and written. With the states in L2 or beyond that is bound by memory.
//
// A token touches each state once, so vectors run over the states of a channel, as memory has them;
// the sum across lanes that selective_scan avoids is paid once per channel here.

#include "ops/selective_scan_step/kernels.h"

#include "ops/selective_scan/decay.h"
#include "ops/selective_scan/kernels.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

ADDER_INLINE F32 load_lanes(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
ADDER_INLINE void store_lanes(float* p, F32 v, int n) {
  n == kLanes ? store(p, v) : store_n(p, v, n);
}

// What the first stage leaves for the channels of a span.
struct Channels {
  float dt[kStepChannels];
  float dt_x[kStepChannels];
  float y[kStepChannels];
};

// The states of kCount channels from channel i on. All loads of a few channels come before their
// stores: otherwise, where A and the state lie at the same place within a page, a load of A would
// wait for the store before it, which it seems to depend on.
template <int kCount>
ADDER_INLINE void update(const StepSpan& span, int i, Channels& channels) {
  const float* A = span.A + i * span.A_stride;
  float* state = span.state + i * span.state_stride;
  F32 sums[kCount];
  for (int k = 0; k < kCount; ++k) sums[k] = zero();
  const auto states = [&](std::int64_t n, int lanes) __attribute__((always_inline)) {
    const F32 B = load_lanes(span.B + n, lanes);
    const F32 C = load_lanes(span.C + n, lanes);
    F32 h[kCount];
    for (int k = 0; k < kCount; ++k) {
      const F32 A_k = load_lanes(A + k * span.A_stride + n, lanes) * set1(kScanFactor);
      h[k] = advance(load_lanes(state + k * span.state_stride + n, lanes),
                     decay(set1(channels.dt[i + k]) * A_k), set1(channels.dt_x[i + k]) * B);
      sums[k] = fma(C, h[k], sums[k]);
    }
    for (int k = 0; k < kCount; ++k) store_lanes(state + k * span.state_stride + n, h[k], lanes);
  };
  std::int64_t n = 0;
  for (; n + kLanes <= span.dstate; n += kLanes) states(n, kLanes);
  if (n < span.dstate) states(n, static_cast<int>(span.dstate - n));
  for (int k = 0; k < kCount; ++k) channels.y[i + k] = reduce_add(sums[k]);
}

void step(const StepSpan& span) {
  Channels channels;
  for (int i = 0; i < span.nchannels; i += kLanes) {
    const int lanes = span.nchannels - i < kLanes ? span.nchannels - i : kLanes;
    F32 dt = load_lanes(span.dt + i, lanes);
    if (span.dt_bias != nullptr) dt += load_lanes(span.dt_bias + i, lanes);
    if (span.dt_softplus) dt = softplus(dt);
    store(channels.dt + i, dt);
    store(channels.dt_x + i, dt * load_lanes(span.x + i, lanes));
  }
  int c = 0;
  for (; c + 4 <= span.nchannels; c += 4) update<4>(span, c, channels);
  for (; c < span.nchannels; ++c) update<1>(span, c, channels);
  for (int i = 0; i < span.nchannels; i += kLanes) {
    const int lanes = span.nchannels - i < kLanes ? span.nchannels - i : kLanes;
    F32 y = load_lanes(channels.y + i, lanes);
    if (span.D != nullptr) y = fma(load_lanes(span.D + i, lanes), load_lanes(span.x + i, lanes), y);
    if (span.z != nullptr) y *= silu(load_lanes(span.z + i, lanes));
    store_lanes(span.y + i, y, lanes);
  }
}

}  // namespace

const SelectiveScanStepKernels& selective_scan_step_kernels() {
  static constexpr SelectiveScanStepKernels kKernels{step};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
