// Work per element: at bf16 6 bytes (y and z read, out written, once each) for about 15
// instructions, two of them special functions. Bound: device memory; 32,768 tokens of 5,120
// channels move 1.01 GB, 0.235 ms at the 4.28 TB/s of an H200.
//
// Map: a group of a token is a row. Up to 128 vectors of 16 bytes it belongs to a warp, beyond to a
// thread block, with at most 4 vectors of y and of z to a thread, all asked for at once and kept in
// registers from the sum of squares to the result. Longer rows, and rows that are not aligned, go
// through a loop that reads them twice, the second time from cache. Shared memory: one float per
// warp. Arithmetic: float32. The weight is read through L1, where it stays from row to row.
// Registers, sm_90: 74 at 4 vectors of bf16, 57 at 2, 40 at 1, 52 in the loop; no spills.

#include "adder/dtype.h"
#include "cuda/overlap.cuh"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#include "ops/gated_rms_norm/cuda_kernel.h"

namespace adder::cuda::gated_norm {
namespace {

// The pointers of one row.
template <typename T>
struct Row {
  const T* y;
  const T* z;
  const float* weight;
  T* out;

  __device__ Row(const Params<T>& p, std::int64_t row) {
    const std::int64_t token = p.ngroups == 1 ? row : row / p.ngroups;
    const std::int64_t first = (row - token * p.ngroups) * p.size;
    y = p.y + token * p.y_stride + first;
    z = p.z == nullptr ? nullptr : p.z + token * p.z_stride + first;
    weight = p.weight == nullptr ? nullptr : p.weight + first;
    out = p.out + token * p.out_stride + first;
  }
};

template <typename T, int V>
__device__ __forceinline__ void multiply_by_silu(float (&values)[V], const float (&z)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] *= silu<T>(z[i]);
}

// Rows of at most kVectors vectors to a thread.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads)
    short_rows_kernel(const __grid_constant__ Params<T> p, int warps_per_row) {
  begin_after_previous_kernel();
  constexpr int V = kVector<T>;
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens * p.ngroups) return;
  const Row<T> row(p, thread.row);
  const bool gate_first = row.z != nullptr && (!p.norm_before_gate || !p.norm);
  const bool gate_last = row.z != nullptr && !gate_first;

  const auto offset_of = [&](int k) { return V * (thread.index + k * thread.threads); };
  Pack<T, V> y[kVectors];
  Pack<T, V> z[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.size) break;
    y[k] = load_once<V>(row.y + offset_of(k));
    if (row.z != nullptr) z[k] = load_once<V>(row.z + offset_of(k));
  }

  float values[kVectors][V];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.size) break;
    to_floats(y[k], values[k]);
    if (gate_first) {
      float gate[V];
      to_floats(z[k], gate);
      multiply_by_silu<T>(values[k], gate);
    }
    sum = add_squares(sum, values[k]);
  }
  const float scale = p.norm ? inverse_rms(thread.sum(sum), p.size, p.epsilon) : 1.0F;

#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.size) break;
    apply_scale(values[k], scale, row.weight == nullptr ? nullptr : row.weight + offset_of(k));
    if (gate_last) {
      float gate[V];
      to_floats(z[k], gate);
      multiply_by_silu<T>(values[k], gate);
    }
    store(row.out + offset_of(k), from_floats<T, V>(values[k]));
  }
}

// Rows of any length, in vectors of V.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    long_rows_kernel(const __grid_constant__ Params<T> p, int warps_per_row) {
  begin_after_previous_kernel();
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens * p.ngroups) return;
  const Row<T> row(p, thread.row);
  const bool gate_first = row.z != nullptr && (!p.norm_before_gate || !p.norm);
  const std::int64_t step = std::int64_t{V} * thread.threads;

  // The vector at i, before it is normalized; `gate` is silu's argument.
  const auto value_at = [&](std::int64_t i, float(&values)[V], float(&gate)[V]) {
    to_floats(load<V>(row.y + i), values);
    if (row.z != nullptr) to_floats(load<V>(row.z + i), gate);
    if (gate_first) multiply_by_silu<T>(values, gate);
  };
  float scale = 1;
  if (p.norm) {
    float sum = 0;
    for (std::int64_t i = std::int64_t{V} * thread.index; i < p.size; i += step) {
      float values[V];
      float gate[V];
      value_at(i, values, gate);
      sum = add_squares(sum, values);
    }
    scale = inverse_rms(thread.sum(sum), p.size, p.epsilon);
  }
  for (std::int64_t i = std::int64_t{V} * thread.index; i < p.size; i += step) {
    float values[V];
    float gate[V];
    value_at(i, values, gate);
    apply_scale(values, scale, row.weight == nullptr ? nullptr : row.weight + i);
    if (row.z != nullptr && !gate_first) multiply_by_silu<T>(values, gate);
    store(row.out + i, from_floats<T, V>(values));
  }
}

}  // namespace

template <typename T>
void launch(const Params<T>& params, bool vectorized, Stream stream) {
  const RowPlan plan =
      vectorized ? plan_rows(params.size / kVector<T>) : plan_rows_in_a_loop(params.size);
  const auto blocks = static_cast<unsigned>(plan.blocks(params.ntokens * params.ngroups));
  const int threads = plan.threads_per_block();
  const int warps = plan.warps_per_row;
  const auto run = [&](auto kernel) {
    launch_after_previous("to launch gated_rms_norm", kernel, blocks, threads, stream, params,
                          warps);
  };
  if (!vectorized) {
    run(long_rows_kernel<T, 1>);
  } else if (plan.vectors == 0) {
    run(long_rows_kernel<T, kVector<T>>);
  } else if (plan.vectors == 1) {
    run(short_rows_kernel<T, 1>);
  } else if (plan.vectors == 2) {
    run(short_rows_kernel<T, 2>);
  } else {
    run(short_rows_kernel<T, 4>);
  }
}

template void launch(const Params<float>&, bool, Stream);
template void launch(const Params<bf16>&, bool, Stream);
template void launch(const Params<f16>&, bool, Stream);

}  // namespace adder::cuda::gated_norm
