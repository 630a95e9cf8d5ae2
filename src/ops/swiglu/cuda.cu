// Work per element: with bf16 6 bytes (x and gate read, y written, once each), two special
// functions and about 10 other instructions; with float32 12 bytes and about 30 instructions.
// Bound: device memory; 32,768 tokens of 5,120 columns in bf16 move 1.01 GB, 0.235 ms at the 4.28
// TB/s of an H200, in which its special-function units could do four times as much.
//
// Map: a row belongs to a warp up to 128 vectors of 16 bytes, beyond to a thread block, with at
// most 4 vectors of x and of gate to a thread, all asked for at once. Longer rows go through a
// loop, and rows that are not aligned through one that takes single elements. A thread writes only
// what it has read itself, and after it, so y may be x or gate. No shared memory. Arithmetic:
// float32. Registers, sm_90: 51 at 4 vectors of bf16, 52 of float32; no spills.

#include "adder/dtype.h"
#include "cuda/check.h"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#include "ops/swiglu/cuda_kernel.h"

namespace adder::cuda::glu {
namespace {

// The pointers of one row.
template <typename T>
struct Row {
  const T* x;
  const T* gate;
  T* y;

  __device__ Row(const Params<T>& p, std::int64_t token)
      : x(p.x + token * p.x_stride),
        gate(p.gate + token * p.gate_stride),
        y(p.y + token * p.y_stride) {}
};

template <typename T, int V>
__device__ __forceinline__ Pack<T, V> gated(const Pack<T, V>& x, const Pack<T, V>& gate) {
  float values[V];
  float gates[V];
  to_floats(x, values);
  to_floats(gate, gates);
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] *= silu<T>(gates[i]);
  return from_floats<T, V>(values);
}

// Rows of at most kVectors vectors to a thread.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads)
    short_rows_kernel(const __grid_constant__ Params<T> p, int warps_per_row) {
  constexpr int V = kVector<T>;
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens) return;
  const Row<T> row(p, thread.row);

  const auto offset_of = [&](int k) { return V * (thread.index + k * thread.threads); };
  Pack<T, V> x[kVectors];
  Pack<T, V> gate[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_mlp) break;
    x[k] = load_once<V>(row.x + offset_of(k));
    gate[k] = load_once<V>(row.gate + offset_of(k));
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_mlp) break;
    store(row.y + offset_of(k), gated(x[k], gate[k]));
  }
}

// Rows of any length, in vectors of V.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    long_rows_kernel(const __grid_constant__ Params<T> p, int warps_per_row) {
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens) return;
  const Row<T> row(p, thread.row);
  const std::int64_t step = std::int64_t{V} * thread.threads;
  for (std::int64_t i = std::int64_t{V} * thread.index; i < p.d_mlp; i += step) {
    store(row.y + i, gated(load_once<V>(row.x + i), load_once<V>(row.gate + i)));
  }
}

}  // namespace

template <typename T>
void launch(const Params<T>& params, bool vectorized, Stream stream) {
  const RowPlan plan =
      vectorized ? plan_rows(params.d_mlp / kVector<T>) : plan_rows_in_a_loop(params.d_mlp);
  const auto blocks = static_cast<unsigned>(plan.blocks(params.ntokens));
  const int threads = plan.threads_per_block();
  const int warps = plan.warps_per_row;
  if (!vectorized) {
    long_rows_kernel<T, 1><<<blocks, threads, 0, stream>>>(params, warps);
  } else if (plan.vectors == 0) {
    long_rows_kernel<T, kVector<T>><<<blocks, threads, 0, stream>>>(params, warps);
  } else if (plan.vectors == 1) {
    short_rows_kernel<T, 1><<<blocks, threads, 0, stream>>>(params, warps);
  } else if (plan.vectors == 2) {
    short_rows_kernel<T, 2><<<blocks, threads, 0, stream>>>(params, warps);
  } else {
    short_rows_kernel<T, 4><<<blocks, threads, 0, stream>>>(params, warps);
  }
  check_launch("to launch swiglu");
}

template void launch(const Params<float>&, bool, Stream);
template void launch(const Params<bf16>&, bool, Stream);
template void launch(const Params<f16>&, bool, Stream);

}  // namespace adder::cuda::glu
