#pragma once

// The fused state-space dual on Hopper: one kernel that walks the chunks of a segment of the
// sequence with the state in registers; C Bᵀ, decays and states between chunks never leave the
// chip.
//
// Work, for T tokens of H heads of P channels, N = dstate, one group: T (H (4 P N + 64 P) + 64 N H)
// flops (each head multiplies its own C Bᵀ, whole tiles of 64 × 64); bytes T (H (4 P + 2) + 4 N).
// On an H200 (4.28 TB/s, 790 TFLOP/s) the bytes decide up to N = 256.
//
// A block owns up to four units of one group (heads of up to 64 channels, or parts of wider ones)
// and one segment of the sequence. Each unit has
//
//   a producer warp    brings its x through the copy engine, the first also B and C for all, and
//                      turns dt into prefix sums
//   a warpgroup        keeps its state, 64 channels × 64 kSlices, in float32 accumulators (thread
//                      map: multiply_64x64x16)
//
// With s the prefix sum of dt A log2(e) inside a chunk of 64 tokens and t = s − log2(dt), the
// warpgroup computes of each chunk
//
//   scores   64 × 64       C Bᵀ                                           k = dstate
//   y        64 × 64       C Sᵀ, S in 16 bits in shared memory            k = dstate
//   state    64 × dstate   2^s_last S + (2^(s_last − t_j) x_j)ᵀ B         k = tokens
//   y        64 × 64       2^s_i y + (scores ∘ 2^(s_i − t_j), j <= i) x   k = tokens
//
// Products accumulate in float32; rounded to 16 bits are S, the weighted x and the weighted scores.
// Exponents s_i − s_j are at most zero; dt joins them as its logarithm, so a dt of zero is a weight
// of zero and costs nothing. Away from the diagonal a score's decay is the product of one of its
// row and one of its column. D, if a head has one, is added to the diagonal of the weighted scores.
//
// A head is a chain of dependent steps, most of them a few instructions long, so a block is as fast
// as it has heads under way: four with 64 of dstate, three with 128, two beyond, by the registers
// that their states leave.
//
// Few chains would leave most of the chip idle, so a sequence may be cut into segments, all
// computed at once. What a segment begins with comes from
//
//   the tokens before it   walked again, without outputs, from where on the heads of the block
//                          remember anything (hopper_memory.cuh): a look at dt tells. Where memory
//                          is short, or the sequence.
//   two kernels before     the same kernel without C and y finds the end state of each segment from
//                          zero, and its decay; a small one combines them into the state before
//                          each segment. x and B are read twice, but for what is forgotten at a
//                          segment's end. A block ends at once if the next segment's outputs find
//                          their state by themselves and nothing of it is left after that segment.
//
// Many chains leave the chip idle too, where their number is no multiple of its multiprocessors.
// Then all sequences are laid end to end and cut into a part for each of them. A block begins with
// the sequence that it will not finish, so that its state is there before the block that goes on
// with it has done its own.
//
// Registers: 96 at launch for four heads, 128 for three, 168 for two, then as Layout says. Spills:
// none in the loops over chunks, but for 40 bytes in producers of four heads, and some pointers
// where four heads have z or sequences are laid end to end. Shared memory with
// outputs: 201, 191, 181 and 227 KiB at 64, 128, 192 and 256 of dstate.
//
// Tried and lost (ms at 4 × 262,144 tokens, 8 heads, dstate 128, H200): barriers with cluster
// scope, whose acquire empties the L1 cache (2.72, before other gains); D x added from shared
// memory (1.76 against 1.51); shared memory read behind products in flight, in whose queue it waits
// (1.77 against 1.51); x weighed while it is loaded (1.48 against 1.39); two warpgroups a head, one
// for the state and one for y (1.44 against 1.39); B and C multicast to a cluster, which saves what
// the L2 cache had anyway; an earlier pass's y added in registers, with loads ahead of time, not by
// the copy engine (2.23 against 1.80 at 4 × 131,072 tokens and 512 of dstate). Warpgroups that take
// turns with the products of C gain 1 % at 256 of dstate.
//
// Tried with a mixed result (4 × 131,072 tokens of 8 heads, then 8 × 4,096 of 80, ms, against a
// former version): everything transposed, so that the state is an operand from registers and never
// stored, and a third warpgroup for the scores of both heads (0.89 against 0.82; 0.41 against
// 0.45). One launch that computes end states, combines and goes on to the outputs, with blocks that
// wait for each other, costs as much as three.

#include <cstdint>
#include <type_traits>

#include "ops/ssd_forward/hopper_head.cuh"
#include "ops/ssd_forward/hopper_layout.cuh"
#include "ops/ssd_forward/hopper_memory.cuh"
#include "ops/ssd_forward/hopper_producers.cuh"

namespace adder::cuda::hopper {

/// Calls visit(barrier, arrivals) for all.
template <int kSlices, bool kOutputs, typename Visit>
__device__ inline void each_barrier(Shared<kSlices, kOutputs>& shared, Visit&& visit) {
  using L = Layout<kSlices, kOutputs>;
  for (int i = 0; i < L::kStages; ++i) {
    visit(&shared.bc_full[i], 1);
    visit(&shared.bc_empty[i], 4 * L::kHeads);
    for (int h = 0; h < L::kHeads; ++h) {
      visit(&shared.x_full[i][h], 1 + 32);  // the copy engine's thread and those of the sums
      visit(&shared.x_empty[i][h], 4);
    }
  }
  for (int h = 0; h < L::kHeads; ++h) visit(&shared.y_free[h], 1);
}

template <int kSlices, bool kOutputs>
__device__ inline void init_barriers(Shared<kSlices, kOutputs>& shared) {
  each_barrier(shared, [](Barrier* barrier, int arrivals) { init_barrier(barrier, arrivals); });
  fence_barrier_init();
}

template <int kSlices, bool kOutputs>
__device__ inline void prefetch_maps(const Params& p) {
  prefetch_map(p.x);
  prefetch_map(p.B);
  if constexpr (kOutputs) prefetch_map(p.C);
  if constexpr (kOutputs) prefetch_map(p.y);
}

template <typename T, int kSlices, bool kOutputs, bool kExtras>
__global__ void __launch_bounds__(Layout<kSlices, kOutputs>::kThreads, 1)
    ssd_forward_kernel(const __grid_constant__ Params p) {
  using L = Layout<kSlices, kOutputs>;
  static_assert(sizeof(Shared<kSlices, kOutputs>) <= 227 * 1024);
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kSlices, kOutputs>*>(memory);
  let_next_kernel_begin();  // it waits before it reads what this one writes
  if (threadIdx.x == 0) {
    init_barriers(shared);
    prefetch_maps<kSlices, kOutputs>(p);
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  Place place = place_of_block(p, L::kHeads);
  if constexpr (kOutputs) {
    begin_before_segment<T>(p, shared, place);
  } else {
    if (!leave_out_forgotten<T>(p, shared, place)) {
      if (warpgroup > 0 && threadIdx.x % 128 == 0) {
        const Unit unit = unit_of(p, place, warpgroup - 1);
        const std::int64_t index = segment_index(p, place, unit, place.segment);
        if (unit.exists) p.segment_decays[index] = kUnneeded;
      }
      return;
    }
  }
  if (threadIdx.x == 0) shared.place = place;
  __syncthreads();
  if (warpgroup == 0) {
    give_registers<L::kProducerRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp < L::kHeads) Producer<T, kSlices, kOutputs>(p, shared, warp).run();
  } else {
    take_registers<L::kConsumerRegisters>();
    using Consumer =
        std::conditional_t<kOutputs, Head<T, kSlices, kExtras>, State<T, kSlices, kOutputs>>;
    Consumer(p, shared, warpgroup - 1).run();
  }
  // A block that needed nothing of the kernel before it still must not end before that.
  if constexpr (kOutputs) wait_for_previous_kernel();
}

/// Takes up the block's next piece; false if there is none. All threads take part, from different
/// places, so that __syncthreads() would not do.
template <int kSlices>
__device__ inline bool next_piece(const Params& p, Shared<kSlices, true>& shared, int index) {
  const auto sync_block = [&](std::uint32_t parity) {
    arrive(&shared.all);
    wait(&shared.all, parity);
  };
  sync_block(0);  // everyone is done with the piece before
  if (threadIdx.x == 0) {
    if (index == 0) {
      // In the order in which blocks begin: one only waits for the state of one that began before.
      shared.part = atomicAdd(p.tickets, 1U);
    } else {
      each_barrier(shared, [](Barrier* barrier, int) { invalidate_barrier(barrier); });
    }
    init_barriers(shared);
    shared.has_place =
        place_of_piece(p, Layout<kSlices, true>::kHeads, shared.part, index, shared.place);
  }
  sync_block(1);
  return shared.has_place;
}

/// Many sequences, laid end to end and cut into equal parts, one for each block.
template <typename T, int kSlices, bool kExtras>
__global__ void __launch_bounds__(Layout<kSlices, true>::kThreads, 1)
    ssd_forward_end_to_end_kernel(const __grid_constant__ Params p) {
  using L = Layout<kSlices, true>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kSlices, true>*>(memory);
  if (threadIdx.x == 0) {
    prefetch_maps<kSlices, true>(p);
    init_barrier(&shared.all, L::kThreads);
    fence_barrier_init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    give_registers<L::kProducerRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    for (int i = 0; next_piece(p, shared, i); ++i) {
      if (warp < L::kHeads) Producer<T, kSlices, true>(p, shared, warp).run();
    }
  } else {
    take_registers<L::kConsumerRegisters>();
    for (int i = 0; next_piece(p, shared, i); ++i) {
      Head<T, kSlices, kExtras>(p, shared, warpgroup - 1).run();
    }
  }
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
    const float log_decay = p.segment_decays[first + segment - 1];
    if (log_decay == kUnneeded) {
      sum = {0.0F, 0.0F, 0.0F, 0.0F};
      continue;
    }
    const float4 v = at[segment * quads];
    const float decay = exp2_approx(log_decay);
    sum = {sum.x * decay + v.x, sum.y * decay + v.y, sum.z * decay + v.z, sum.w * decay + v.w};
    at[segment * quads] = sum;
  }
}

}  // namespace adder::cuda::hopper
