// Work per element: with a float32 residual and bf16 x and y 12 bytes (the residual read and
// written, x read, y written, once each) for about 8 instructions. Bound: device memory; 32,768
// tokens of 2,560 channels move 1.01 GB, 0.235 ms at the 4.28 TB/s of an H200.
//
// Map: a row belongs to a warp up to 128 vectors of 16 bytes of the residual (with as many elements
// of x and y), beyond to a thread block, with at most 4 vectors to a thread, all asked for at once
// and kept in registers from the sum of squares to the result. Longer rows, and rows that are not
// aligned, go through a loop that reads them twice, the second time from cache. Shared memory: one
// float per warp. Arithmetic: float32. The weight is read through L1, where it stays from row to
// row. Registers, sm_90: 64 at 4 vectors of bf16, 40 with a float32 residual; no spills.

#include <type_traits>

#include "adder/dtype.h"
#include "cuda/overlap.cuh"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#include "ops/rms_norm/cuda_kernel.h"

namespace adder::cuda::rms {
namespace {

// The pointers of one row.
template <typename R, typename T>
struct Row {
  R* residual;
  const T* x;
  T* y;

  __device__ Row(const Params<R, T>& p, std::int64_t token)
      : residual(p.residual + token * p.residual_stride),
        x(p.x == nullptr ? nullptr : p.x + token * p.x_stride),
        y(p.y + token * p.y_stride) {}
};

template <typename R, int V>
__device__ __forceinline__ void load_residual(const R* from, float (&values)[V]) {
  if constexpr (std::is_same_v<R, float>) {
    load_floats(from, true, values);
  } else {
    to_floats(load<V>(from), values);
  }
}

// values += x, which is then the residual.
template <typename R, typename T, int V>
__device__ __forceinline__ void add_to_residual(float (&values)[V], const Pack<T, V>& x,
                                                R* residual) {
  float addend[V];
  to_floats(x, addend);
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] += addend[i];
  if constexpr (std::is_same_v<R, float>) store_floats(residual, values);
}

// Rows of at most kVectors vectors to a thread.
template <typename R, typename T, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads)
    short_rows_kernel(const __grid_constant__ Params<R, T> p, int warps_per_row) {
  begin_after_previous_kernel();
  constexpr int V = kVector<R>;
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens) return;
  const Row<R, T> row(p, thread.row);

  const auto offset_of = [&](int k) { return V * (thread.index + k * thread.threads); };
  float values[kVectors][V];
  Pack<T, V> x[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_model) break;
    load_residual(row.residual + offset_of(k), values[k]);
    if (row.x != nullptr) x[k] = load_once<V>(row.x + offset_of(k));
  }

  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_model) break;
    if (row.x != nullptr) add_to_residual(values[k], x[k], row.residual + offset_of(k));
    sum = add_squares(sum, values[k]);
  }
  const float scale = inverse_rms(thread.sum(sum), p.d_model, p.epsilon);

#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_model) break;
    apply_scale(values[k], scale, p.weight == nullptr ? nullptr : p.weight + offset_of(k));
    store(row.y + offset_of(k), from_floats<T, V>(values[k]));
  }
}

// Rows of any length, in vectors of V.
template <typename R, typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    long_rows_kernel(const __grid_constant__ Params<R, T> p, int warps_per_row) {
  begin_after_previous_kernel();
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens) return;
  const Row<R, T> row(p, thread.row);
  const std::int64_t first = std::int64_t{V} * thread.index;
  const std::int64_t step = std::int64_t{V} * thread.threads;

  float sum = 0;
  for (std::int64_t i = first; i < p.d_model; i += step) {
    float values[V];
    load_residual(row.residual + i, values);
    if (row.x != nullptr) add_to_residual(values, load<V>(row.x + i), row.residual + i);
    sum = add_squares(sum, values);
  }
  const float scale = inverse_rms(thread.sum(sum), p.d_model, p.epsilon);
  for (std::int64_t i = first; i < p.d_model; i += step) {
    float values[V];
    load_residual(row.residual + i, values);
    apply_scale(values, scale, p.weight == nullptr ? nullptr : p.weight + i);
    store(row.y + i, from_floats<T, V>(values));
  }
}

}  // namespace

template <typename R, typename T>
void launch(const Params<R, T>& params, bool vectorized, Stream stream) {
  const RowPlan plan =
      vectorized ? plan_rows(params.d_model / kVector<R>) : plan_rows_in_a_loop(params.d_model);
  const auto blocks = static_cast<unsigned>(plan.blocks(params.ntokens));
  const int threads = plan.threads_per_block();
  const int warps = plan.warps_per_row;
  const auto run = [&](auto kernel) {
    launch_after_previous("to launch rms_norm", kernel, blocks, threads, stream, params, warps);
  };
  if (!vectorized) {
    run(long_rows_kernel<R, T, 1>);
  } else if (plan.vectors == 0) {
    run(long_rows_kernel<R, T, kVector<R>>);
  } else if (plan.vectors == 1) {
    run(short_rows_kernel<R, T, 1>);
  } else if (plan.vectors == 2) {
    run(short_rows_kernel<R, T, 2>);
  } else {
    run(short_rows_kernel<R, T, 4>);
  }
}

template void launch(const Params<float, float>&, bool, Stream);
template void launch(const Params<float, bf16>&, bool, Stream);
template void launch(const Params<float, f16>&, bool, Stream);
template void launch(const Params<bf16, bf16>&, bool, Stream);
template void launch(const Params<f16, f16>&, bool, Stream);

}  // namespace adder::cuda::rms
