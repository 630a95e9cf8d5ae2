// Work: every element of the state is read, updated and written once: 8 bytes and 5 flops, so the
// kernel is bound by memory: 1.2 µs for a sequence of mamba2-2.7b's 80 heads of 64 × 128 on the
// H200 at 4.3 TB/s, less than a launch; 19.5 µs for 16. Everything else is small. With states in
// bf16 it is half of that, and some eight integer operations an element to round it.
//
// A warp takes four rows (channels) of a head's state, 512 bytes of each at a time: four accesses
// of 16 bytes a lane are under way before the first is used, 2.6 MB on the whole device for one
// sequence of that model. A lane holds B and C of its columns for all four rows; the sum over
// columns goes over lanes in a fixed order. A block of four warps takes 16 rows, so that one
// sequence already gives 320 blocks.
//
// Registers (nvcc 13.0, sm_90): 59, with a bf16 state 72; no spills, no shared memory. Eight rows
// of a bf16 state, for as many bytes under way in a warp, take 109, which leaves half the warps;
// not timed.

#include "core/ceil_div.h"
#include "cuda/math.cuh"
#include "cuda/overlap.cuh"
#include "cuda/state_rounding.cuh"
#include "cuda/vector.cuh"
#include "ops/chunk_cumsum/time_step.cuh"
#include "ops/ssd_step/cuda_kernel.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRows = 4;  // of a warp

template <typename T>
__device__ __forceinline__ const T* element(const StepTensor<const void>& tensor,
                                            std::int64_t sequence, std::int64_t column) {
  return static_cast<const T*>(tensor.data) + sequence * tensor.row + column * tensor.column;
}

template <typename T>
__device__ __forceinline__ float step_of(const StepParams& p, std::int64_t sequence,
                                         std::int64_t head) {
  const float raw = p.dt_is_float ? *element<float>(p.dt, sequence, head)
                                  : read(element<T>(p.dt, sequence, head));
  return time_step(raw + (p.dt_bias == nullptr ? 0.0F : p.dt_bias[head]), p.dt_options);
}

// Four rows of the state of one head and their part of y = S C.
template <typename T, typename State, int V>
__device__ __forceinline__ void update_rows(const StepParams& p, State* state, const T* B,
                                            const T* C, float decay, const float (&weights)[kRows],
                                            int nrows, float (&y)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kColumns = kWarpSize * V;
  const std::int64_t end = loop_end<State, kColumns>(p.dstate);
  for (std::int64_t n = lane * V; n < end; n += kColumns) {
    const bool inside = !kRoundsState<State> || n < p.dstate;
    float s[kRows][V];
    std::uint32_t key = lane;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= nrows || !inside) continue;
      const Pack<State, V> old = load<V>(state + r * p.state_p + n);
      to_floats(old, s[r]);
      if constexpr (kRoundsState<State>) key = fold_key(key, old);
    }
    if constexpr (kRoundsState<State>) {
      key = shared_key(key, kFullWarp) + lane * (V * kRows);
      if (!inside) return;
    }
    float b[V];
    float c[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      b[i] = read(B + n + i);
      c[i] = read(C + n + i);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= nrows) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        s[r][i] = decay * s[r][i] + weights[r] * b[i];
        y[r] += s[r][i] * c[i];
      }
      store(state + r * p.state_p + n, round_state<State>(s[r], key + r * V));
    }
  }
}

template <typename T, typename State, int V>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ StepParams p) {
  begin_after_previous_kernel();
  const std::int64_t blocks_per_head = (p.headdim + kWarps * kRows - 1) / (kWarps * kRows);
  const std::int64_t unit = blockIdx.x / blocks_per_head;
  const std::int64_t sequence = unit / p.nheads;
  const std::int64_t head = unit % p.nheads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t first =
      (blockIdx.x % blocks_per_head * kWarps + threadIdx.x / kWarpSize) * kRows;
  if (first >= p.headdim) return;
  const auto nrows = static_cast<int>(p.headdim - first < kRows ? p.headdim - first : kRows);
  const T* x = element<T>(p.x, sequence, head) + first;
  const float dt = step_of<T>(p, sequence, head);
  const float decay = expf(dt * p.A[head]);
  float weights[kRows];
  float y[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    weights[r] = r < nrows ? dt * read(x + r) : 0.0F;
    y[r] = 0.0F;
  }
  const std::int64_t group = head / p.heads_per_group;
  auto* state = static_cast<State*>(p.state) + sequence * p.state_sequence + head * p.state_head;
  update_rows<T, State, V>(p, state + first * p.state_p, element<T>(p.B, sequence, group),
                           element<T>(p.C, sequence, group), decay, weights, nrows, y);
  float own = 0.0F;  // the sum of the row that the lane stores
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(y[r]);
    if (lane == r) own = sum;
  }
  if (lane >= nrows) return;
  if (p.D != nullptr) {
    own += (p.D_has_headdim ? p.D[head * p.headdim + first + lane] : p.D[head]) * read(x + lane);
  }
  if (p.z.data != nullptr) own *= silu<T>(read(element<T>(p.z, sequence, head) + first + lane));
  write(static_cast<T*>(p.y.data) + sequence * p.y.row + head * p.y.column + first + lane, own);
}

}  // namespace

template <typename T, typename State>
void launch_step(const StepParams& params, bool vectors, Stream stream) {
  const std::int64_t blocks =
      params.batch * params.nheads * ceil_div(params.headdim, kWarps * kRows);
  launch_after_previous("to launch ssd_step",
                        vectors ? step_kernel<T, State, 4> : step_kernel<T, State, 1>, blocks,
                        kThreads, stream, params);
}

template void launch_step<float, float>(const StepParams&, bool, Stream);
template void launch_step<bf16, float>(const StepParams&, bool, Stream);
template void launch_step<f16, float>(const StepParams&, bool, Stream);
template void launch_step<float, bf16>(const StepParams&, bool, Stream);
template void launch_step<bf16, bf16>(const StepParams&, bool, Stream);
template void launch_step<f16, bf16>(const StepParams&, bool, Stream);

}  // namespace adder::cuda
