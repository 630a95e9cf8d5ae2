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

// Updates the states [n, n + lanes) of one channel and adds their part of C · h to `sum`.
ADDER_INLINE void update(const StepSpan& span, const float* A, float* state, F32 dt, F32 dt_x,
                         std::int64_t n, int lanes, F32& sum) {
  const F32 a = decay(dt * (load_lanes(A + n, lanes) * set1(kScanFactor)));
  const F32 h = advance(load_lanes(state + n, lanes), a, dt_x * load_lanes(span.B + n, lanes));
  store_lanes(state + n, h, lanes);
  sum = fma(load_lanes(span.C + n, lanes), h, sum);
}

void step(const StepSpan& span) {
  float dt[kStepChannels];
  float dt_x[kStepChannels];
  float y[kStepChannels];
  for (int i = 0; i < span.nchannels; i += kLanes) {
    const int lanes = span.nchannels - i < kLanes ? span.nchannels - i : kLanes;
    F32 v = load_lanes(span.dt + i, lanes);
    if (span.dt_bias != nullptr) v += load_lanes(span.dt_bias + i, lanes);
    if (span.dt_softplus) v = softplus(v);
    store(dt + i, v);
    store(dt_x + i, v * load_lanes(span.x + i, lanes));
  }
  for (int i = 0; i < span.nchannels; ++i) {
    const float* A = span.A + i * span.A_stride;
    float* state = span.state + i * span.state_stride;
    F32 sum = zero();
    std::int64_t n = 0;
    for (; n + kLanes <= span.dstate; n += kLanes) {
      update(span, A, state, set1(dt[i]), set1(dt_x[i]), n, kLanes, sum);
    }
    if (n < span.dstate) {
      const int lanes = static_cast<int>(span.dstate - n);
      update(span, A, state, set1(dt[i]), set1(dt_x[i]), n, lanes, sum);
    }
    y[i] = reduce_add(sum);
  }
  for (int i = 0; i < span.nchannels; i += kLanes) {
    const int lanes = span.nchannels - i < kLanes ? span.nchannels - i : kLanes;
    F32 v = load_lanes(y + i, lanes);
    if (span.D != nullptr) v = fma(load_lanes(span.D + i, lanes), load_lanes(span.x + i, lanes), v);
    if (span.z != nullptr) v *= silu(load_lanes(span.z + i, lanes));
    store_lanes(span.y + i, v, lanes);
  }
}

}  // namespace

const SelectiveScanStepKernels& selective_scan_step_kernels() {
  static constexpr SelectiveScanStepKernels kKernels{step};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
