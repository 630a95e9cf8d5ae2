// Work per head: 6 · headdim · dstate flops on headdim · dstate floats read and written once (64 KB
// of traffic for 64 · 128): bound by the memory that holds the states. Four rows of the state share
// each load of B and C.

#include "ops/ssd_step/kernels.h"

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr int kRows = 4;

// R rows: state = decay · state + input[r] · B; sums[r] = state · C.
template <int R, typename T>
ADDER_INLINE void advance_rows(const SsdStepHead& h, float* state, float decay, const float* input,
                               float* sums) {
  const T* B = static_cast<const T*>(h.B);
  const T* C = static_cast<const T*>(h.C);
  F32 acc[R] = {};
  const auto step = [&](std::int64_t n, int lanes) __attribute__((always_inline)) {
    const bool whole = lanes == kLanes;
    const F32 b = whole ? load(B + n) : load_n(B + n, lanes);
    const F32 c = whole ? load(C + n) : load_n(C + n, lanes);
    for (int r = 0; r < R; ++r) {
      float* p = state + r * h.state_stride + n;
      // The product is rounded first, so that how a compiler fuses the two does not matter.
      const F32 added = b * set1(input[r]);
      const F32 s = fma(set1(decay), whole ? load(p) : load_n(p, lanes), added);
      whole ? store(p, s) : store_n(p, s, lanes);
      acc[r] = fma(s, c, acc[r]);
    }
  };
  std::int64_t n = 0;
  for (; n + kLanes <= h.dstate; n += kLanes) step(n, kLanes);
  if (n < h.dstate) step(n, static_cast<int>(h.dstate - n));
  for (int r = 0; r < R; ++r) sums[r] = reduce_add(acc[r]);
}

template <typename T>
void head_of(const SsdStepHead& h) {
  const float decay = exp(set1(h.dt * h.A))[0];
  const auto* x = static_cast<const T*>(h.x);
  for (std::int64_t p = 0; p < h.headdim; p += kLanes) {
    const int lanes = static_cast<int>(h.headdim - p < kLanes ? h.headdim - p : kLanes);
    const F32 x_lanes = load_n(x + p, lanes);
    float input[kLanes];
    float sums[kLanes] = {};
    store(input, x_lanes * set1(h.dt));
    int r = 0;
    for (; r + kRows <= lanes; r += kRows) {
      advance_rows<kRows, T>(h, h.state + (p + r) * h.state_stride, decay, input + r, sums + r);
    }
    for (; r < lanes; ++r) {
      advance_rows<1, T>(h, h.state + (p + r) * h.state_stride, decay, input + r, sums + r);
    }
    F32 y = load(sums);
    if (h.D != nullptr) {
      y = fma(h.D_has_headdim ? load_n(h.D + p, lanes) : set1(*h.D), x_lanes, y);
    }
    if (h.z != nullptr) y *= silu(load_n(static_cast<const T*>(h.z) + p, lanes));
    store_n(static_cast<T*>(h.y) + p, y, lanes);
  }
}

void head(const SsdStepHead& h) {
  switch (h.dtype) {
    case DType::bf16:
      return head_of<bf16>(h);
    case DType::f16:
      return head_of<f16>(h);
    default:
      return head_of<float>(h);
  }
}

}  // namespace

const SsdStepKernels& ssd_step_kernels() {
  static constexpr SsdStepKernels kKernels{head};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
