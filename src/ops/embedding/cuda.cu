// Work per element: with bf16 weights and a float32 y 6 bytes (the weight read, y written, once
// each) and no flops. Bound: device memory, at the rate of a copy; 32,768 tokens of 2,560 channels
// move 0.50 GB, 0.118 ms at the 4.28 TB/s of an H200. A row of weight that several tokens ask for
// is read from cache after the first time.
//
// Map: a row of y belongs to a warp up to 128 vectors of 16 bytes of the wider dtype, beyond to a
// thread block, with at most 4 vectors to a thread, all asked for at once; the id, which every
// thread of a row needs first, is one access of a warp. Longer rows go through a loop, and rows
// that are not aligned through one that moves single elements. No shared memory. Registers, sm_90:
// 22 at 4 vectors of bf16 to float32, never more than 30; no spills.

#include <type_traits>

#include "adder/dtype.h"
#include "cuda/check.h"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#include "ops/embedding/cuda_kernel.h"

namespace adder::cuda::embed {
namespace {

// A row of y and the row of weight that it is to hold, null if there is none.
template <typename W, typename T>
struct Row {
  const W* weight;
  T* y;

  __device__ Row(const Params<W, T>& p, std::int64_t token)
      : weight(nullptr), y(p.y + token * p.y_stride) {
    const std::int64_t id = p.ids[token];
    if (id >= 0 && id < p.vocab_rows) weight = p.weight + id * p.weight_stride;
  }

  template <int V>
  __device__ __forceinline__ Pack<W, V> load_at(std::int64_t i) const {
    if (weight != nullptr) return load<V>(weight + i);
    constexpr unsigned kNaN = 0x7fffffffu;
    float values[V];
#pragma unroll
    for (int k = 0; k < V; ++k) values[k] = __uint_as_float(kNaN);
    return from_floats<W, V>(values);
  }
};

template <typename T, typename W, int V>
__device__ __forceinline__ Pack<T, V> convert(const Pack<W, V>& pack) {
  if constexpr (std::is_same_v<W, T>) {
    return pack;
  } else {
    float values[V];
    to_floats(pack, values);
    return from_floats<T, V>(values);
  }
}

// Rows of at most kVectors vectors to a thread.
template <typename W, typename T, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads)
    short_rows_kernel(const __grid_constant__ Params<W, T> p, int warps_per_row) {
  constexpr int V = kEmbedVector<W, T>;
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens) return;
  const Row<W, T> row(p, thread.row);

  const auto offset_of = [&](int k) { return V * (thread.index + k * thread.threads); };
  Pack<W, V> packs[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_model) break;
    packs[k] = row.template load_at<V>(offset_of(k));
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (offset_of(k) >= p.d_model) break;
    store(row.y + offset_of(k), convert<T>(packs[k]));
  }
}

// Rows of any length, in vectors of V.
template <typename W, typename T, int V>
__global__ void __launch_bounds__(kMaxRowThreads)
    long_rows_kernel(const __grid_constant__ Params<W, T> p, int warps_per_row) {
  const RowThread thread(warps_per_row);
  if (thread.row >= p.ntokens) return;
  const Row<W, T> row(p, thread.row);
  const std::int64_t step = std::int64_t{V} * thread.threads;
  for (std::int64_t i = std::int64_t{V} * thread.index; i < p.d_model; i += step) {
    store(row.y + i, convert<T>(row.template load_at<V>(i)));
  }
}

}  // namespace

template <typename W, typename T>
void launch(const Params<W, T>& params, bool vectorized, Stream stream) {
  constexpr int V = kEmbedVector<W, T>;
  const RowPlan plan =
      vectorized ? plan_rows(params.d_model / V) : plan_rows_in_a_loop(params.d_model);
  const auto blocks = static_cast<unsigned>(plan.blocks(params.ntokens));
  const int threads = plan.threads_per_block();
  const int warps = plan.warps_per_row;
  if (!vectorized) {
    long_rows_kernel<W, T, 1><<<blocks, threads, 0, stream>>>(params, warps);
  } else if (plan.vectors == 0) {
    long_rows_kernel<W, T, V><<<blocks, threads, 0, stream>>>(params, warps);
  } else if (plan.vectors == 1) {
    short_rows_kernel<W, T, 1><<<blocks, threads, 0, stream>>>(params, warps);
  } else if (plan.vectors == 2) {
    short_rows_kernel<W, T, 2><<<blocks, threads, 0, stream>>>(params, warps);
  } else {
    short_rows_kernel<W, T, 4><<<blocks, threads, 0, stream>>>(params, warps);
  }
  check_launch("to launch embedding");
}

template void launch(const Params<float, float>&, bool, Stream);
template void launch(const Params<float, bf16>&, bool, Stream);
template void launch(const Params<float, f16>&, bool, Stream);
template void launch(const Params<bf16, float>&, bool, Stream);
template void launch(const Params<bf16, bf16>&, bool, Stream);
template void launch(const Params<bf16, f16>&, bool, Stream);
template void launch(const Params<f16, float>&, bool, Stream);
template void launch(const Params<f16, bf16>&, bool, Stream);
template void launch(const Params<f16, f16>&, bool, Stream);

}  // namespace adder::cuda::embed
