// Work per head and token: 4 bytes read (2 of a 16-bit dt), 12 written, about 60 instructions: on
// the H200 bound by memory, 5 µs for 80 heads of 16,384 tokens at 4.3 TB/s. The scan's dozen
// float64 operations a token, of a unit that does 64 per clock and multiprocessor, take a fifth of
// that.
//
// A block of 256 threads does a chunk of 32 heads, 64 tokens at a time: rows of 32 heads come in
// coalesced (adjacent in memory as in_proj writes them), are turned into dt and transposed in
// shared memory (rows padded to 33 floats: no bank conflicts either way). Then each warp scans four
// heads, a token a lane, in float64, and writes rows of 32 tokens.
//
// Registers (nvcc 13.0, sm_90): 93, no spills; 8 KB of shared memory: two blocks of a
// multiprocessor.
//
// The scan restarts at the first token of each segment: a lane adds what a lower lane has only if
// no segment begins in between.

#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "cuda/vector.cuh"
#include "ops/chunk_cumsum/cuda_kernel.h"
#include "ops/chunk_cumsum/device_plan.cuh"
#include "ops/chunk_cumsum/time_step.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kHeads = 32;   // of a block
constexpr int kTokens = 64;  // of a tile
constexpr int kHeadsPerWarp = kHeads / kWarps;

// Steps of the tile's tokens, zero for padding and what is not there. A thread's head is the same
// in every round.
template <typename T>
__device__ void load_steps(const CumsumParams& p, const Chunk& chunk, const std::int32_t* segments,
                           std::int64_t first_head, std::int64_t first_token,
                           float (&steps)[kTokens][kHeads + 1]) {
  const int column = static_cast<int>(threadIdx.x) % kHeads;
  const std::int64_t head = first_head + column;
  const bool head_exists = head < p.nheads;
  const float bias = head_exists && p.dt_bias != nullptr ? p.dt_bias[head] : 0.0F;
  const T* raw = static_cast<const T*>(p.dt_raw) + chunk.row * p.row_stride +
                 chunk.begin * p.token_stride + head * p.head_stride;
#pragma unroll
  for (int row = static_cast<int>(threadIdx.x) / kHeads; row < kTokens; row += kThreads / kHeads) {
    const std::int64_t token = first_token + row;
    const bool there =
        head_exists && token < chunk.length && (segments == nullptr || segments[token] >= 0);
    float dt = 0.0F;
    if (there) {
      float v[1];
      to_floats(load<1>(raw + token * p.token_stride), v);
      dt = time_step(v[0] + bias, p.options);
    }
    steps[row][column] = dt;
  }
}

// The running sum of one head, a warp's 32 tokens at a time.
struct RunningSum {
  double sum = 0;
  std::int32_t segment = 0;

  /// The lane's inclusive sum of `v`; `own_segment` is that of its token.
  __device__ double add(double v, std::int32_t own_segment) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    std::int32_t before = __shfl_up_sync(kFullWarp, own_segment, 1);
    if (lane == 0) before = segment;
    const unsigned begins = __ballot_sync(kFullWarp, own_segment != before);
    const unsigned up_to_lane = begins & (kFullWarp >> (kWarpSize - 1 - lane));
    const int first = up_to_lane == 0 ? -1 : 31 - __clz(static_cast<int>(up_to_lane));
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const double lower = __shfl_up_sync(kFullWarp, v, distance);
      if (lane - distance >= max(first, 0)) v += lower;
    }
    if (first < 0) v += sum;
    sum = __shfl_sync(kFullWarp, v, kWarpSize - 1);
    segment = __shfl_sync(kFullWarp, own_segment, kWarpSize - 1);
    return v;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    chunk_cumsum_kernel(const __grid_constant__ CumsumParams p) {
  __shared__ float steps[kTokens][kHeads + 1];
  constexpr double kLog2EDouble = 1.4426950408889634074;
  constexpr double kFloor = -1024;
  const std::int64_t head_blocks = (p.nheads + kHeads - 1) / kHeads;
  const std::int64_t slot = blockIdx.x / head_blocks;
  const std::int64_t first_head = blockIdx.x % head_blocks * kHeads;
  const std::int64_t width = p.plan.chunk_size;
  const Chunk chunk = load_chunk(p.plan, p.window.first + slot);
  const std::int32_t* segments =
      p.plan.segments == nullptr ? nullptr : p.plan.segments + (p.window.first + slot) * width;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  RunningSum sums[kHeadsPerWarp];
  for (std::int64_t tile = 0; tile < width; tile += kTokens) {
    load_steps<T>(p, chunk, segments, first_head, tile, steps);
    __syncthreads();
#pragma unroll
    for (int half = 0; half < kTokens; half += kWarpSize) {
      const std::int64_t token = tile + half + lane;
      const std::int32_t segment =
          segments == nullptr ? 0 : segment_number(segments[min(token, width - 1)]);
#pragma unroll
      for (int i = 0; i < kHeadsPerWarp; ++i) {
        const int column = warp * kHeadsPerWarp + i;
        const std::int64_t head = first_head + column;
        const bool head_exists = head < p.nheads;
        const float dt = steps[half + lane][column];
        const double A = head_exists ? static_cast<double>(p.A[head]) : 0.0;
        const double a = static_cast<double>(dt) * A * kLog2EDouble;
        const double sum = sums[i].add(a < kFloor ? kFloor : a, segment);
        if (head_exists && token < width) {
          const std::int64_t row = head * p.window.count + slot;
          const auto high = static_cast<float>(sum);
          p.dt[row * width + token] = dt;
          p.dA_cumsum[row * 2 * width + token] = high;
          p.dA_cumsum[(row * 2 + 1) * width + token] =
              static_cast<float>(sum - static_cast<double>(high));
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace

template <typename T>
void launch_cumsum(const CumsumParams& params, Stream stream) {
  const std::int64_t blocks = params.window.count * ceil_div(params.nheads, kHeads);
  launch("to launch chunk_cumsum", chunk_cumsum_kernel<T>, blocks, kThreads, 0, stream, params);
}

template void launch_cumsum<float>(const CumsumParams&, Stream);
template void launch_cumsum<bf16>(const CumsumParams&, Stream);
template void launch_cumsum<f16>(const CumsumParams&, Stream);

}  // namespace adder::cuda
