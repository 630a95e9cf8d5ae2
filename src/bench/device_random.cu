// One hash and, for normal numbers, one logarithm, square root and cosine per element.

#include "bench/device_random.h"

#include <algorithm>

#include "adder/dtype.h"
#include "cuda/check.h"
#include "cuda/vector.cuh"

namespace adder::bench {
namespace {

constexpr int kThreads = 256;

// The finalizer of splitmix64: every bit of the result depends on every bit of v.
__device__ std::uint64_t hash(std::uint64_t v) {
  v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ull;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebull;
  return v ^ (v >> 31);
}

template <typename T>
__global__ void fill_kernel(T* data, std::int64_t n, Distribution distribution) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const std::uint64_t bits = hash(hash(distribution.seed) + static_cast<std::uint64_t>(i));
    // Two uniform numbers in (0, 1).
    const float first = (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F;
    const float second = (static_cast<float>((bits >> 8) & 0xffffff) + 0.5F) * 0x1p-24F;
    const float value = distribution.normal
                            ? sqrtf(-2.0F * logf(first)) * cospif(2.0F * second)
                            : distribution.low + (distribution.high - distribution.low) * first;
    cuda::store(data + i, cuda::from_floats<T, 1>({value}));
  }
}

}  // namespace

template <typename T>
void fill_random(T* data, std::int64_t n, const Distribution& distribution, cuda::Stream stream) {
  if (n == 0) return;
  constexpr std::int64_t kMostBlocks = 1 << 16;
  const std::int64_t blocks = std::min((n + kThreads - 1) / kThreads, kMostBlocks);
  fill_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(data, n, distribution);
  cuda::check_launch("to launch fill_random");
}

template void fill_random(float*, std::int64_t, const Distribution&, cuda::Stream);
template void fill_random(bf16*, std::int64_t, const Distribution&, cuda::Stream);
template void fill_random(f16*, std::int64_t, const Distribution&, cuda::Stream);

}  // namespace adder::bench
