// The chunk plan of tensors that only the device can read.
//
// Work: 40 bytes written for a chunk, 4 read for a sequence, 4 read and written for a token of
// seq_idx: 0.6 MB and 8 MB for a million tokens in chunks of 64, microseconds at 4.3 TB/s. What
// counts is the latency of three dependent launches.
//
//   bound_sequences   one block of 1,024 threads, a sequence a thread: running maximum of the
//                     offsets (so that bad ones neither overlap nor go back) and running sum of the
//                     chunks, carried from tile to tile of 1,024 sequences
//   cut_chunks        a chunk a thread, which finds its sequence by bisection
//   last_indices,     a chunk a warp, 32 tokens at a time; the last index that is not padding
//   number_segments   before a chunk is looked up 32 chunks at a time

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/math.cuh"
#include "ops/chunk_cumsum/cuda_kernel.h"

namespace adder::cuda {
namespace {

constexpr int kScanThreads = 1024;
constexpr int kCutThreads = 256;
constexpr int kSegmentWarps = 8;
constexpr std::int32_t kNoIndex = -1;

struct Larger {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// The inclusive scan of `v` over the block; `shared` has one element per warp.
template <typename T, typename Combine>
__device__ T block_scan(T v, T* shared, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const auto warp_scan = [&](T value) {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const T before = __shfl_up_sync(kFullWarp, value, distance);
      if (lane >= distance) value = combine(before, value);
    }
    return value;
  };
  v = warp_scan(v);
  __syncthreads();  // the last scan's reads of `shared` are done
  if (lane == kWarpSize - 1) shared[warp] = v;
  __syncthreads();
  if (warp == 0) shared[lane] = warp_scan(shared[lane]);
  __syncthreads();
  return warp == 0 ? v : combine(shared[warp - 1], v);
}

static_assert(kScanThreads == kWarpSize * kWarpSize);

__device__ std::int32_t clamped(std::int32_t offset, std::int64_t seqlen) {
  return offset < 0 ? 0 : offset > seqlen ? static_cast<std::int32_t>(seqlen) : offset;
}

__global__ void __launch_bounds__(kScanThreads) bound_sequences(const PlanParams p) {
  __shared__ std::int32_t ends_of_warps[kWarpSize];
  __shared__ long long counts_of_warps[kWarpSize];
  __shared__ std::int32_t begin;  // of the tile's first sequence
  __shared__ long long count;     // chunks before it
  if (threadIdx.x == 0) {
    begin = clamped(p.cu_seqlens[0], p.seqlen);
    count = 0;
    p.memory.bounds[0] = begin;
    p.memory.first_chunk[0] = 0;
  }
  __syncthreads();
  for (std::int64_t tile = 0; tile < p.nsequences; tile += kScanThreads) {
    const std::int64_t s = tile + threadIdx.x;
    const bool exists = s < p.nsequences;
    const std::int32_t tile_begin = begin;
    const long long tile_count = count;
    const std::int32_t own_end = exists ? clamped(p.cu_seqlens[s + 1], p.seqlen) : 0;
    const std::int32_t end = max(tile_begin, block_scan(own_end, ends_of_warps, Larger()));
    if (exists) p.memory.bounds[s + 1] = end;
    __syncthreads();  // the bounds of this tile can be read
    const std::int32_t own_begin = !exists            ? end
                                   : threadIdx.x == 0 ? tile_begin
                                                      : p.memory.bounds[s];
    const long long chunks = (end - own_begin + p.chunk_size - 1) / p.chunk_size;
    const long long through = tile_count + block_scan(chunks, counts_of_warps, Plus());
    if (exists) p.memory.first_chunk[s + 1] = through;
    if (threadIdx.x == kScanThreads - 1) {
      begin = end;
      count = through;
    }
    __syncthreads();
  }
}

// Chunk `c` of packed sequences.
__device__ Chunk packed_chunk(const PlanParams& p, std::int64_t c) {
  const std::int64_t* first = p.memory.first_chunk;
  if (c >= first[p.nsequences]) return {p.batch, 0, 0, p.nsequences, false};
  std::int64_t low = 0;  // first[low] <= c < first[high]
  std::int64_t high = p.nsequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (first[middle] <= c ? low : high) = middle;
  }
  const std::int64_t begin = p.memory.bounds[low] + (c - first[low]) * p.chunk_size;
  return {0, begin, min(p.chunk_size, p.memory.bounds[low + 1] - begin), low, false};
}

__global__ void __launch_bounds__(kCutThreads) cut_chunks(const PlanParams p) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kCutThreads + threadIdx.x;
  if (p.cu_seqlens != nullptr) {
    if (i < p.nchunks) p.memory.chunks[i] = packed_chunk(p, i);
    return;
  }
  if (i <= p.nsequences) p.memory.first_chunk[i] = i * p.chunks_per_row;
  if (i >= p.nchunks) return;
  const std::int64_t row = i / p.chunks_per_row;
  const std::int64_t begin = i % p.chunks_per_row * p.chunk_size;
  p.memory.chunks[i] = {row, begin, min(p.chunk_size, p.seqlen - begin), row, false};
}

// The values of seq_idx in one chunk, 32 tokens at a time, for a warp.
class ChunkIndices {
 public:
  __device__ ChunkIndices(const PlanParams& p, std::int64_t c)
      : chunk_(p.memory.chunks[c]),
        indices_(p.seq_idx + chunk_.row * p.row_stride + chunk_.begin * p.token_stride),
        stride_(p.token_stride),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ std::int64_t length() const { return chunk_.length; }
  __device__ std::int64_t sequence() const { return chunk_.sequence; }
  /// Of the lane's token; negative for padding and past the end.
  __device__ std::int32_t at(std::int64_t tile) const {
    const std::int64_t i = tile + lane_;
    return i < chunk_.length ? indices_[i * stride_] : kNoIndex;
  }

 private:
  const Chunk chunk_;
  const std::int32_t* indices_;
  const std::int64_t stride_;
  const int lane_;
};

__device__ std::int64_t chunk_of_warp() {
  return std::int64_t{blockIdx.x} * kSegmentWarps + threadIdx.x / kWarpSize;
}

__global__ void __launch_bounds__(kSegmentWarps* kWarpSize) last_indices(const PlanParams p) {
  const std::int64_t c = chunk_of_warp();
  if (c >= p.nchunks) return;
  const ChunkIndices indices(p, c);
  std::int32_t last = kNoIndex;
  for (std::int64_t tile = 0; tile < indices.length(); tile += kWarpSize) {
    const std::int32_t index = indices.at(tile);
    const unsigned tokens = __ballot_sync(kFullWarp, index >= 0);
    if (tokens != 0) last = __shfl_sync(kFullWarp, index, 31 - __clz(static_cast<int>(tokens)));
  }
  if (threadIdx.x % kWarpSize == 0) p.memory.last_index[c] = last;
}

// The last index before chunk `c` in its sequence that is not padding.
__device__ std::int32_t index_before(const PlanParams& p, std::int64_t c, std::int64_t sequence) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (std::int64_t nearest = c - 1;; nearest -= kWarpSize) {
    const std::int64_t other = nearest - lane;
    const bool same = other >= 0 && p.memory.chunks[other].sequence == sequence;
    const std::int32_t index = same ? p.memory.last_index[other] : kNoIndex;
    const unsigned found = __ballot_sync(kFullWarp, index >= 0);
    if (found != 0) return __shfl_sync(kFullWarp, index, __ffs(static_cast<int>(found)) - 1);
    if (__ballot_sync(kFullWarp, same) != kFullWarp) return kNoIndex;
  }
}

__global__ void __launch_bounds__(kSegmentWarps* kWarpSize) number_segments(const PlanParams p) {
  const std::int64_t c = chunk_of_warp();
  if (c >= p.nchunks) return;
  const ChunkIndices indices(p, c);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const unsigned up_to_lane = kFullWarp >> (kWarpSize - 1 - lane);
  std::int32_t* segments = p.memory.segments + c * p.chunk_size;
  std::int32_t current = index_before(p, c, indices.sequence());
  std::int32_t number = 0;
  for (std::int64_t tile = 0; tile < p.chunk_size; tile += kWarpSize) {
    const std::int32_t index = indices.at(tile);
    const unsigned tokens = __ballot_sync(kFullWarp, index >= 0);
    const unsigned before = tokens & up_to_lane & ~(1U << lane);
    const int previous_lane = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
    const std::int32_t neighbor = __shfl_sync(kFullWarp, index, previous_lane);
    const std::int32_t previous = before == 0 ? current : neighbor;
    const bool restarts = index >= 0 && previous >= 0 && index != previous;
    const unsigned all_restarts = __ballot_sync(kFullWarp, restarts);
    const std::int32_t own = number + __popc(all_restarts & up_to_lane);
    if (tile + lane < p.chunk_size) segments[tile + lane] = index >= 0 ? own : ~own;
    number += __popc(all_restarts);
    if (tokens != 0) current = __shfl_sync(kFullWarp, index, 31 - __clz(static_cast<int>(tokens)));
  }
}

}  // namespace

void launch_plan(const PlanParams& p, Stream stream) {
  if (p.cu_seqlens != nullptr) {
    launch("to launch bound_sequences", bound_sequences, 1, kScanThreads, 0, stream, p);
  }
  launch("to launch cut_chunks", cut_chunks,
         ceil_div(std::max(p.nchunks, p.nsequences + 1), kCutThreads), kCutThreads, 0, stream, p);
  if (p.seq_idx != nullptr) {
    const std::int64_t blocks = ceil_div(p.nchunks, kSegmentWarps);
    launch("to launch last_indices", last_indices, blocks, kSegmentWarps * kWarpSize, 0, stream, p);
    launch("to launch number_segments", number_segments, blocks, kSegmentWarps * kWarpSize, 0,
           stream, p);
  }
}

}  // namespace adder::cuda
