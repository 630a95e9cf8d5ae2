// Work: every element of the state is read, updated and written once, and with it one of A is read:
// 12 bytes of which A's 4 come from L2 for all sequences but the first, and one exponential. Bound:
// memory; a sequence of a layer of mamba-2.8b (5,120 channels of 16 states) moves 0.66 MB, 0.15 µs
// on an H200 at 4.28 TB/s, less than a launch; 512 of them 0.08 ms. With states in bf16 half of it
// comes from memory, A's 4 bytes still from L2.
//
// Map: a channel belongs to a group of lanes, as few as have all of its states in vectors of four
// (4 lanes at 16 states), at most a warp, which then goes on in a loop; a warp's accesses to the
// state are adjacent. All lanes of a channel compute its dt, so that they need nothing from each
// other until the sum over states, which goes over lanes in a fixed order. Shared memory: none.
// Arithmetic: float32, a state through the same operations as in selective_scan. Registers (nvcc
// 13.0, sm_90): at most 44, with bf16 states 48; no spills.

#include "core/ceil_div.h"
#include "cuda/overlap.cuh"
#include "cuda/state_rounding.cuh"
#include "cuda/vector.cuh"
#include "ops/selective_scan/cuda_math.cuh"
#include "ops/selective_scan_step/cuda_kernel.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
__device__ __forceinline__ float read(const ScanStepTensor<const void>& tensor,
                                      std::int64_t sequence, std::int64_t channel) {
  return cuda::read(static_cast<const T*>(tensor.data) + sequence * tensor.sequence + channel);
}

// V adjacent elements, with one access if they are aligned to their size.
template <int V, typename T>
__device__ __forceinline__ void read_group(const T* from, bool aligned, float (&out)[V]) {
  if (V > 1 && aligned) {
    to_floats(load<V>(from), out);
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) out[i] = cuda::read(from + i);
}

// The lanes whose elements decide together how they are rounded, and this one's place among them:
// all of the warp, if they are sure to have channels of one sequence only, else the channel's.
struct KeyLanes {
  unsigned mask, place;
};
template <int kLanes>
__device__ __forceinline__ KeyLanes key_lanes(std::int64_t d_inner) {
  const unsigned lane = threadIdx.x % kWarpSize;
  if (kLanes == kWarpSize || d_inner % (kWarpSize / kLanes) == 0) return {kFullWarp, lane};
  const unsigned place = lane % kLanes;
  return {((1U << kLanes % kWarpSize) - 1U) << (lane - place), place};
}

// kLanes threads share a channel. Threads past the last channel do its work again but store
// nothing, so that all of a warp take part in the sums.
template <typename T, typename State, int V, int kLanes>
__global__ void __launch_bounds__(kThreads)
    scan_step_kernel(const __grid_constant__ ScanStepParams p) {
  begin_after_previous_kernel();
  const std::int64_t last = p.batch * p.d_inner - 1;
  const std::int64_t wanted = std::int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t unit = wanted < last ? wanted : last;
  const std::int64_t sequence = unit / p.d_inner;
  const std::int64_t channel = unit % p.d_inner;
  const std::int64_t group = channel / p.group_size;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;

  const float x = read<T>(p.x, sequence, channel);
  const float raw = read<T>(p.dt, sequence, channel);
  const float v = raw + (p.dt_bias == nullptr ? 0.0F : p.dt_bias[channel]);
  const float dt = p.dt_softplus ? scan_softplus<T>(v) : v;
  const float weight = dt * x;
  State* state =
      static_cast<State*>(p.state) + sequence * p.state_sequence + channel * p.state_channel;
  const float* A = p.A + channel * p.A_stride;
  const T* B = static_cast<const T*>(p.B.data) + sequence * p.B.sequence + group * p.B.column;
  const T* C = static_cast<const T*>(p.C.data) + sequence * p.C.sequence + group * p.C.column;
  float y = 0.0F;
  constexpr int kStates = kLanes * V;
  const std::int64_t end = loop_end<State, kStates>(p.dstate);
  for (std::int64_t n = lane * V; n < end; n += kStates) {
    const bool inside = !kRoundsState<State> || n < p.dstate;
    float h[V];
    const KeyLanes lanes = key_lanes<kLanes>(p.d_inner);
    std::uint32_t key = lanes.place;
    if (inside) {
      const Pack<State, V> old = load_once<V>(state + n);
      to_floats(old, h);
      if constexpr (kRoundsState<State>) key = fold_key(key, old);
    }
    if constexpr (kRoundsState<State>) {
      key = shared_key(key, lanes.mask) + lanes.place * V;
      if (!inside) break;
    }
    float a[V];
    float b[V];
    float c[V];
    load_floats(A + n, true, a);
    read_group(B + n, p.group_vectors, b);
    read_group(C + n, p.group_vectors, c);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      h[i] = fmaf(scan_decay<T>(dt * scan_rate(a[i] * kLog2E)), h[i], weight * b[i]);
      y = fmaf(c[i], h[i], y);
    }
    if (wanted <= last) store_once(state + n, round_state<State>(h, key));
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    y += __shfl_xor_sync(kFullWarp, y, distance);
  }
  if (lane != 0 || wanted > last) return;
  if (p.D != nullptr) y = fmaf(p.D[channel], x, y);
  if (p.z.data != nullptr) y *= silu<T>(read<T>(p.z, sequence, channel));
  write(static_cast<T*>(p.y.data) + sequence * p.y.sequence + channel, y);
}

template <typename T, typename State, int V, int kLanes>
void launch_lanes(const ScanStepParams& p, Stream stream) {
  launch_after_previous("to launch selective_scan_step", scan_step_kernel<T, State, V, kLanes>,
                        ceil_div(p.batch * p.d_inner, kThreads / kLanes), kThreads, stream, p);
}

template <typename T, typename State, int V>
void launch_vectors(const ScanStepParams& p, Stream stream) {
  const std::int64_t vectors = ceil_div(p.dstate, V);
  if (vectors <= 2) return launch_lanes<T, State, V, 2>(p, stream);
  if (vectors <= 4) return launch_lanes<T, State, V, 4>(p, stream);
  if (vectors <= 8) return launch_lanes<T, State, V, 8>(p, stream);
  if (vectors <= 16) return launch_lanes<T, State, V, 16>(p, stream);
  return launch_lanes<T, State, V, 32>(p, stream);
}

}  // namespace

template <typename T, typename State>
void launch_scan_step(const ScanStepParams& params, bool vectors, Stream stream) {
  if (vectors) return launch_vectors<T, State, 4>(params, stream);
  launch_vectors<T, State, 1>(params, stream);
}

template void launch_scan_step<float, float>(const ScanStepParams&, bool, Stream);
template void launch_scan_step<bf16, float>(const ScanStepParams&, bool, Stream);
template void launch_scan_step<f16, float>(const ScanStepParams&, bool, Stream);
template void launch_scan_step<float, bf16>(const ScanStepParams&, bool, Stream);
template void launch_scan_step<bf16, bf16>(const ScanStepParams&, bool, Stream);
template void launch_scan_step<f16, bf16>(const ScanStepParams&, bool, Stream);

}  // namespace adder::cuda
