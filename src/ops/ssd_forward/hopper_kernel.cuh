#pragma once

// The fused state-space dual on Hopper: one kernel that walks the chunks of a segment of the
// sequence with the state in registers; C Bᵀ, decays and states between chunks never leave the
// chip.
//
// Work, for T tokens of H heads of P channels, N = dstate, one group: T (H (4 P N + 64 P) + 64 N H)
// flops (each head multiplies its own C Bᵀ, whole tiles of 64 × 64); bytes T (H (4 P + 2) + 4 N).
// On an H200 (4.28 TB/s, 790 TFLOP/s) the bytes decide up to N = 256.
//
// A block owns two units of one group (heads of up to 64 channels, or parts of wider ones) and one
// segment of the sequence:
//
//   warps 0 to 3   producers: warp 0 brings B and C, warp 3 x, through the copy engine; warps 1 and
//                  2 turn dt of one unit each into prefix sums
//   warps 4 to 7   the first unit    warps 8 to 11   the second unit
//
// A unit's warpgroup keeps its state, 64 channels × 64 kSlices, in float32 accumulators (thread
// map: multiply_64x64x16). With s the prefix sum of dt A log2(e) inside a chunk of 64 tokens and t
// = s − log2(dt):
//
//   scores   64 × 64       C Bᵀ                                           k = dstate
//   y        64 × 64       C Sᵀ, S in 16 bits in shared memory            k = dstate
//   state    64 × dstate   2^s_last S + (2^(s_last − t_j) x_j)ᵀ B         k = tokens
//   y        64 × 64       2^s_i y + (scores ∘ 2^(s_i − t_j), j <= i) x   k = tokens
//
// Products accumulate in float32; rounded to 16 bits are S, the weighted x and the weighted scores.
// Exponents s_i − s_j are at most zero; dt joins them as its logarithm, so a dt of zero is a weight
// of zero and costs nothing. D, if a head has one, is added to the diagonal of the weighted scores.
//
// Blocks of a cluster own units of the same group and the same segment. Each loads its share of the
// rows of B and C into the shared memory of all: B and C cross from the L2 cache once a cluster.
//
// Few chains would leave most of the chip idle, so a sequence may be cut into segments. The same
// kernel, without C and y, first computes the end state of each segment from zero, and its decay; a
// small kernel combines them into the state before each segment; then all segments are computed at
// once. x and B are read twice.
//
// Registers: 168 at launch, then 232 for consumers and 40 for producers. Spills of the kernel with
// outputs, in bytes: none at 64 and 192 of dstate, 32 at 128, 4 at 256; none without outputs.
// Shared memory with outputs: 199, 213, 197 and 227 KiB at 64, 128, 192 and 256.
//
// Tried and lost (ms at 4 × 262,144 tokens, 8 heads, dstate 128, H200): barriers with cluster
// scope, whose acquire empties the L1 cache (2.72, before other gains); D x added from shared
// memory (1.76 against 1.51); shared memory read behind products in flight, in whose queue it waits
// (1.77 against 1.51); x weighed while it is loaded (1.48 against 1.39); two warpgroups a head, one
// for the state and one for y (1.44 against 1.39).
//
// Tried with a mixed result (4 × 131,072 tokens of 8 heads, then 8 × 4,096 of 80, ms): everything
// transposed, so that the state is an operand from registers and never stored, a third warpgroup
// for the scores of both heads, and whole sequences laid end to end and cut into equal parts (0.89
// against 0.82; 0.41 against 0.45). One launch that computes end states, combines and goes on to
// the outputs, with blocks that wait for each other, costs as much as three.

#include <cstdint>
#include <type_traits>

#include "ops/ssd_forward/hopper_head.cuh"
#include "ops/ssd_forward/hopper_layout.cuh"
#include "ops/ssd_forward/hopper_producers.cuh"

namespace adder::cuda::hopper {

template <int kSlices, bool kOutputs>
__device__ inline void init_barriers(const Params& p, Shared<kSlices, kOutputs>& shared) {
  using L = Layout<kSlices, kOutputs>;
  for (int i = 0; i < L::kBcStages; ++i) {
    init_barrier(&shared.bc_full[i], 1);
    init_barrier(&shared.bc_empty[i], kConsumerWarps * p.cluster);
  }
  for (int i = 0; i < L::kXStages; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      init_barrier(&shared.x_full[i][h], 1 + 32);  // the copy engine's thread and the sums' warp
      init_barrier(&shared.x_empty[i][h], kOutputs && !L::kOverlap ? 1 : 128);
    }
  }
  fence_barrier_init();
}

template <typename T, int kSlices, bool kOutputs>
__global__ void __launch_bounds__(kThreads, 1)
    ssd_forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kSlices, kOutputs>*>(memory);
  if (threadIdx.x == 0) {
    init_barriers(p, shared);
    prefetch_map(p.x);
    prefetch_map(p.B);
    if constexpr (kOutputs) prefetch_map(p.C);
    if constexpr (kOutputs) prefetch_map(p.y);
  }
  __syncthreads();
  sync_cluster();
  if constexpr (!kOutputs)
    let_next_kernel_begin();  // it waits before it reads what this one writes
  const Place place = place_of_block(p);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    give_registers<40>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x == 0) produce_bc(p, shared, place);
    if (threadIdx.x == 96) produce_x(p, shared, place);
    if (warp == 1 || warp == 2) produce_sums<T>(p, shared, place, warp - 1);
  } else {
    take_registers<232>();
    using Consumer = std::conditional_t<kOutputs, Head<T, kSlices>, State<T, kSlices, kOutputs>>;
    Consumer(p, shared, place, warpgroup - 1).run();
  }
  sync_cluster();  // nobody leaves while others may still write to its shared memory
}

/// Between the two: from the initial state and the end states of segments, each from zero, the
/// state before every segment, in place. A thread has four values of a unit's state (a fragment's
/// rows r and r + 8, two columns); it reads and writes each segment once. Grid: 8 kSlices × units.
constexpr int kCombineThreads = 128;

__global__ void __launch_bounds__(kCombineThreads)
    combine_segments_kernel(const __grid_constant__ Params p) {
  let_next_kernel_begin();
  wait_for_previous_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int units = p.heads_per_group * p.parts_per_head;
  const int groups = static_cast<int>(gridDim.y) / (units * p.batch);
  const int unit = static_cast<int>(blockIdx.y) % units;
  const int group = static_cast<int>(blockIdx.y) / units % groups;
  const int batch = static_cast<int>(blockIdx.y) / (units * groups);
  const std::int64_t first = std::int64_t{blockIdx.y} * p.nsegments;
  const std::int64_t quads = std::int64_t{gridDim.x} * kCombineThreads;  // of a state
  float4* at = p.segment_states + first * quads + blockIdx.x * kCombineThreads + thread;

  float4 sum = {0.0F, 0.0F, 0.0F, 0.0F};
  if (p.initial_states != nullptr) {
    const int head = group * p.heads_per_group + unit / p.parts_per_head;
    const int channel = unit % p.parts_per_head * kColumns + thread / 32 * 16 + thread % 32 / 4;
    const int n = 8 * static_cast<int>(blockIdx.x) + 2 * (thread % 4);
    const float* row = p.initial_states + batch * p.initial_strides.batch +
                       head * p.initial_strides.head + channel * p.initial_strides.token;
    const float* far_row = row + 8 * p.initial_strides.token;
    if (channel < p.headdim && n < p.dstate) sum.x = row[n];
    if (channel < p.headdim && n + 1 < p.dstate) sum.y = row[n + 1];
    if (channel + 8 < p.headdim && n < p.dstate) sum.z = far_row[n];
    if (channel + 8 < p.headdim && n + 1 < p.dstate) sum.w = far_row[n + 1];
  }
  *at = sum;
#pragma unroll 8
  for (int segment = 1; segment < p.nsegments; ++segment) {
    const float4 v = at[segment * quads];
    const float decay = exp2_approx(p.segment_decays[first + segment - 1]);
    sum = {sum.x * decay + v.x, sum.y * decay + v.y, sum.z * decay + v.z, sum.w * decay + v.w};
    at[segment * quads] = sum;
  }
}

}  // namespace adder::cuda::hopper
