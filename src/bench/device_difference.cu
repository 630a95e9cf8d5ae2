// Two loads, a subtraction and two multiply-adds in float64 per element: bound by reading both
// tensors once, at most a few milliseconds for the largest.

#include "bench/device_difference.h"

#include "adder/dtype.h"
#include "cuda/launch.cuh"
#include "cuda/vector.cuh"

namespace adder::bench {
namespace {

constexpr int kThreads = 256;

/// The sum over the block, in thread 0. All threads of the block call it, `shared` being free.
__device__ double sum_over_block(double value, double* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = shared[0];
  __syncthreads();
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(const T* got, const T* expected, std::int64_t n, double* sums) {
  __shared__ double shared[kThreads];
  double errors = 0;
  double squares = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    float a[1];
    float b[1];
    cuda::to_floats(cuda::load<1>(got + i), a);
    cuda::to_floats(cuda::load<1>(expected + i), b);
    const double error = static_cast<double>(a[0]) - static_cast<double>(b[0]);
    errors += error * error;
    squares += static_cast<double>(b[0]) * static_cast<double>(b[0]);
  }
  errors = sum_over_block(errors, shared);
  squares = sum_over_block(squares, shared);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = errors;
    sums[2 * blockIdx.x + 1] = squares;
  }
}

}  // namespace

template <typename T>
void sum_squares(const T* got, const T* expected, std::int64_t n, double* sums,
                 cuda::Stream stream) {
  cuda::launch("to launch sum_squares", sum_squares_kernel<T>, kDifferenceBlocks, kThreads, 0,
               stream, got, expected, n, sums);
}

template void sum_squares(const float*, const float*, std::int64_t, double*, cuda::Stream);
template void sum_squares(const bf16*, const bf16*, std::int64_t, double*, cuda::Stream);
template void sum_squares(const f16*, const f16*, std::int64_t, double*, cuda::Stream);

}  // namespace adder::bench
