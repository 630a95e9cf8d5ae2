// Few tokens. Work per weight: one multiply-add for each token. Bound: device memory, which the
// weight is read from once; 27 M weights of bf16 (in_proj of mamba2-2.7b) take 12.7 µs at the
// 4.28 TB/s of an H200.
//
// Map: a warp has kRows rows of the weight. A lane has every 32nd vector of 16 bytes of each, and
// the elements of x that go with it for all tokens, from the L1 cache, where the other warps find
// them too. Its products are summed in float32, a row and a token by itself, then over the lanes.
// Shared memory: none.

#include <type_traits>

#include "core/ceil_div.h"
#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/vector.cuh"
#include "ops/linear/cuda_kernel.h"
#include "ops/linear/linear.h"

namespace adder::cuda::linear_kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;

template <typename T, int V>
__device__ __forceinline__ void load_as_floats(const T* from, float (&out)[V]) {
  if constexpr (std::is_same_v<T, float>) {
    load_floats(from, true, out);
  } else {
    to_floats(load<V>(from), out);
  }
}

template <typename T>
__device__ __forceinline__ T from_float(float v) {
  const float one[1] = {v};
  const Pack<T, 1> pack = from_floats<T, 1>(one);
  return *reinterpret_cast<const T*>(&pack.memory);
}

template <typename X, typename W, typename Y, int kTokens, int V>
__global__ void __launch_bounds__(kThreads)
    few_tokens_kernel(const __grid_constant__ Params<X, W, Y> p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t warp = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpSize;
  const std::int64_t first = warp * kRows;
  if (first >= p.out) return;
  const W* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows[r] = p.weight + min(first + r, p.out - 1) * p.weight_stride;
  }

  float sums[kRows][kTokens] = {};
#pragma unroll 2
  for (std::int64_t k = std::int64_t{V} * lane; k < p.in; k += V * kWarpSize) {
    Pack<W, V> packs[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) packs[r] = load_once<V>(rows[r] + k);
    float weights[kRows][V];
#pragma unroll
    for (int r = 0; r < kRows; ++r) to_floats(packs[r], weights[r]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float x[V];
      load_as_floats<X, V>(p.x + t * p.x_stride + k, x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums[r][t] = fmaf(weights[r][i], x[i], sums[r][t]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[r][t] = warp_sum(sums[r][t]);
  }
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= p.out) break;
    const float bias = p.bias == nullptr ? 0.0F : p.bias[first + r];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      Y& y = p.y[t * p.y_stride + first + r];
      float value = sums[r][t] + bias;
      if constexpr (std::is_same_v<Y, float>) {
        if (p.accumulate) value += y;
      }
      y = from_float<Y>(value);
    }
  }
}

template <int kTokens, int V, typename X, typename W, typename Y>
void launch_tokens(const Params<X, W, Y>& params, Stream stream) {
  constexpr int kRowsPerBlock = kThreads / kWarpSize * kRows;
  launch("to launch linear", few_tokens_kernel<X, W, Y, kTokens, V>,
         ceil_div(params.out, std::int64_t{kRowsPerBlock}), kThreads, 0, stream, params);
}

template <int V, typename X, typename W, typename Y>
void launch_vectors(const Params<X, W, Y>& params, Stream stream) {
  switch (params.ntokens) {
    case 1:
      return launch_tokens<1, V>(params, stream);
    case 2:
      return launch_tokens<2, V>(params, stream);
    case 3:
      return launch_tokens<3, V>(params, stream);
    case 4:
      return launch_tokens<4, V>(params, stream);
    case 5:
      return launch_tokens<5, V>(params, stream);
    case 6:
      return launch_tokens<6, V>(params, stream);
    case 7:
      return launch_tokens<7, V>(params, stream);
    default:
      return launch_tokens<8, V>(params, stream);
  }
}
static_assert(kFewTokens == 8);

// ---- what a product by cuBLASLt needs before it -------------------------------------------------

// A thread has one element: these are small beside the product.
struct Element {
  std::int64_t row, column;
  bool exists;

  __device__ Element(std::int64_t rows, std::int64_t columns) {
    const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    row = index / columns;
    column = index % columns;
    exists = row < rows;
  }
};

template <typename... Args, typename... Params>
void launch_elements(void (*kernel)(Params...), std::int64_t count, Stream stream,
                     const Args&... args) {
  launch("to launch linear", kernel, ceil_div(count, std::int64_t{kThreads}), kThreads, 0, stream,
         args...);
}

struct Parts {
  bf16* data[3];
};

__global__ void __launch_bounds__(kThreads)
    split_kernel(const __grid_constant__ Matrix<const float> x, const __grid_constant__ Parts parts,
                 std::int64_t stride) {
  const Element e(x.rows, x.in);
  if (!e.exists) return;
  float rest = x.data[e.row * x.stride + e.column];
#pragma unroll
  for (bf16* part : parts.data) {
    const bf16 rounded = from_float<bf16>(rest);
    part[e.row * stride + e.column] = rounded;
    // What is infinite or no number is so in the first part alone: infinity less itself is none.
    const float value = __uint_as_float(static_cast<std::uint32_t>(rounded.bits) << 16);
    rest = isfinite(value) ? rest - value : 0.0F;
  }
}

__global__ void __launch_bounds__(kThreads)
    widen_kernel(const __grid_constant__ Matrix<const f16> from, float* to, std::int64_t stride) {
  const Element e(from.rows, from.in);
  if (!e.exists) return;
  float one[1];
  to_floats(load<1>(from.data + e.row * from.stride + e.column), one);
  to[e.row * stride + e.column] = one[0];
}

__global__ void __launch_bounds__(kThreads)
    bias_kernel(const __grid_constant__ Matrix<float> y, const float* bias, bool accumulate) {
  const Element e(y.rows, y.in);
  if (!e.exists) return;
  float& to = y.data[e.row * y.stride + e.column];
  to = accumulate ? to + bias[e.column] : bias[e.column];
}

template <typename Y>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const __grid_constant__ Matrix<const float> from,
                 const __grid_constant__ Matrix<Y> to) {
  const Element e(to.rows, to.in);
  if (!e.exists) return;
  to.data[e.row * to.stride + e.column] = from_float<Y>(from.data[e.row * from.stride + e.column]);
}

}  // namespace

template <typename X, typename W, typename Y>
void launch_few_tokens(const Params<X, W, Y>& params, bool vectorized, Stream stream) {
  if (vectorized) {
    launch_vectors<kVector<W>>(params, stream);
  } else {
    launch_vectors<1>(params, stream);
  }
}

template void launch_few_tokens(const Params<float, float, float>&, bool, Stream);
template void launch_few_tokens(const Params<float, bf16, float>&, bool, Stream);
template void launch_few_tokens(const Params<float, f16, float>&, bool, Stream);
template void launch_few_tokens(const Params<bf16, bf16, bf16>&, bool, Stream);
template void launch_few_tokens(const Params<bf16, bf16, float>&, bool, Stream);
template void launch_few_tokens(const Params<f16, f16, f16>&, bool, Stream);
template void launch_few_tokens(const Params<f16, f16, float>&, bool, Stream);

void launch_split(const Matrix<const float>& x, bf16* const (&parts)[3], std::int64_t stride,
                  Stream stream) {
  launch_elements(split_kernel, x.rows * x.in, stream, x, Parts{{parts[0], parts[1], parts[2]}},
                  stride);
}

void launch_widen(const Matrix<const f16>& from, float* to, std::int64_t stride, Stream stream) {
  launch_elements(widen_kernel, from.rows * from.in, stream, from, to, stride);
}

void launch_bias(const Matrix<float>& y, const float* bias, bool accumulate, Stream stream) {
  launch_elements(bias_kernel, y.rows * y.in, stream, y, bias, accumulate);
}

template <typename Y>
void launch_round(const Matrix<const float>& from, const Matrix<Y>& to, Stream stream) {
  launch_elements(round_kernel<Y>, to.rows * to.in, stream, from, to);
}

template void launch_round(const Matrix<const float>&, const Matrix<bf16>&, Stream);
template void launch_round(const Matrix<const float>&, const Matrix<f16>&, Stream);

}  // namespace adder::cuda::linear_kernels
