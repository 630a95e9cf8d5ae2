// Work: every element of the state is read, updated and written once: 8 bytes and 5 flops, so the
// kernel is bound by memory: 1.2 µs for a sequence of mamba2-2.7b's 80 heads of 64 × 128 on the
// H200 at 4.3 TB/s, less than a launch; 19.5 µs for 16. Everything else is small. With states in
// bf16 it is half of that, and some eight integer operations an element to round it.
//
// A warp takes some rows (channels) of a head's state: four accesses of 16 bytes a lane, or eight
// of 8 with a bf16 state, are under way before the first is used, 2.6 MB on the whole device for
// one sequence of that model. States are marked as the first to leave the caches, since their next
// use is a token away: 85.7 instead of 92.4 µs for 64 sequences. With a bf16 state, which leaves
// less time to wait in, rows are asked for before dt is there; float32 has then too many registers,
// and 99 µs. A lane holds B and C of its columns for all rows; the sum over columns goes over lanes
// in a fixed order. A block of four warps takes 16 or 32 rows, so that one sequence already gives
// 320 or 160 blocks.
//
// Registers (nvcc 13.0, sm_90): 72 at most, with a bf16 state 80; no spills, no shared memory.

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
/// Of a warp.
template <typename State>
constexpr int kRows = 16 / sizeof(State);

/// Whether rows are asked for before dt.
template <typename State>
constexpr bool kIsAhead = kRoundsState<State>;

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

// A lane's columns of a warp's rows of the state of one head.
template <typename State, int V>
struct Rows {
  static constexpr int kCount = kRows<State>;
  Pack<State, V> packs[kCount];

  __device__ __forceinline__ void load_from(const State* state, std::int64_t row, int nrows) {
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      if (r < nrows) packs[r] = load_once<V>(state + r * row);
    }
  }
};

// Updates the rows, the first columns of which may be there, and their part of y = S C.
template <typename T, typename State, int V>
__device__ __forceinline__ void update_rows(const StepParams& p, State* state, Rows<State, V>& rows,
                                            const T* B, const T* C, float decay,
                                            const float (&weights)[kRows<State>], int nrows,
                                            float (&y)[kRows<State>]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kColumns = kWarpSize * V;
  const std::int64_t end = loop_end<State, kColumns>(p.dstate);
  for (std::int64_t n = lane * V; n < end; n += kColumns) {
    const bool inside = !kRoundsState<State> || n < p.dstate;
    if ((!kIsAhead<State> || n >= kColumns) && inside) rows.load_from(state + n, p.state_p, nrows);
    std::uint32_t key = lane;
    if constexpr (kRoundsState<State>) {
#pragma unroll
      for (int r = 0; r < kRows<State>; ++r) {
        if (r < nrows && inside) key = fold_key(key, rows.packs[r]);
      }
      key = shared_key(key, kFullWarp) + lane * (V * kRows<State>);
      if (!inside) return;
    }
    float b[V];
    float c[V];
    to_floats(load<V>(B + n), b);
    to_floats(load<V>(C + n), c);
#pragma unroll
    for (int r = 0; r < kRows<State>; ++r) {
      if (r >= nrows) continue;
      float s[V];
      to_floats(rows.packs[r], s);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        s[i] = decay * s[i] + weights[r] * b[i];
        y[r] += s[i] * c[i];
      }
      store_once(state + r * p.state_p + n, round_state<State>(s, key + r * V));
    }
  }
}

template <typename T, typename State, int V>
__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ StepParams p) {
  constexpr int kCount = kRows<State>;
  begin_after_previous_kernel();
  const std::int64_t blocks_per_head = (p.headdim + kWarps * kCount - 1) / (kWarps * kCount);
  const std::int64_t unit = blockIdx.x / blocks_per_head;
  const std::int64_t sequence = unit / p.nheads;
  const std::int64_t head = unit % p.nheads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t first =
      (blockIdx.x % blocks_per_head * kWarps + threadIdx.x / kWarpSize) * kCount;
  if (first >= p.headdim) return;
  const auto nrows = static_cast<int>(p.headdim - first < kCount ? p.headdim - first : kCount);
  State* state = static_cast<State*>(p.state) + sequence * p.state_sequence + head * p.state_head +
                 first * p.state_p;
  Rows<State, V> rows;
  if (kIsAhead<State> && lane * V < p.dstate) rows.load_from(state + lane * V, p.state_p, nrows);

  const T* x = element<T>(p.x, sequence, head) + first;
  const float dt = step_of<T>(p, sequence, head);
  const float decay = expf(dt * p.A[head]);
  float weights[kCount];
  float y[kCount];
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    weights[r] = r < nrows ? dt * read(x + r) : 0.0F;
    y[r] = 0.0F;
  }
  const std::int64_t group = head / p.heads_per_group;
  update_rows<T, State, V>(p, state, rows, element<T>(p.B, sequence, group),
                           element<T>(p.C, sequence, group), decay, weights, nrows, y);
  float own = 0.0F;  // the sum of the row that the lane stores
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
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
      params.batch * params.nheads * ceil_div(params.headdim, kWarps * kRows<State>);
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
