#pragma once

// How far a head's memory reaches back: tokens whose part of a state has decayed to nothing need
// not be read for it. See hopper_kernel.cuh.

#include <cstdint>

#include "ops/ssd_forward/hopper_time_step.cuh"

namespace adder::cuda::hopper {

/// Below this log2 of a decay nothing is left: 2^-160 is zero in float32. Of terms dt x B above
/// 2^11 a part that small may be missing; infinities and NaNs are forgotten too.
constexpr float kForgotten = kMinLogDecay;
/// What a kernel takes for it that relies on another one to find the same.
constexpr float kSurelyForgotten = kForgotten - 1.0F;

/// The memory of one head before the chunk that begins at `end`: up to where its decay falls below
/// `forgotten`. Looked for by the 128 threads of its warpgroup, kLookBack chunks at a time.
/// `worth_it(decay, chunks)`, of the log2 of the decay of the last ones, says whether to look
/// further.
template <typename T, typename WorthIt>
__device__ inline Memory memory_before(const Params& p, const Place& place, int h, int end,
                                       int available, float forgotten, float (&totals)[kLookBack],
                                       WorthIt&& worth_it) {
  static_assert(128 / kLookBack * 4 == kChunk);
  const Unit unit = unit_of(p, place, h);
  if (!unit.exists) return {0, true};
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const TimeSteps<T> dt(p, place, unit);
  const float A_log2 = p.A[unit.head] * kLog2E;
  float decay = 0.0F;
  for (int seen = 0; seen < available; seen += kLookBack) {
    const int back = seen + kLookBack - thread / 16;  // chunks
    float total = 0.0F;
    if (back <= available) {
      const int token = end - back * kChunk + thread % 16 * 4;
      std::uint32_t raw[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) raw[i] = dt.bits(token + i);
#pragma unroll
      for (int i = 0; i < 4; ++i) total += log_decay(dt.value(raw[i], token + i), A_log2);
    }
#pragma unroll
    for (int distance = 1; distance < 16; distance *= 2) {
      total += __shfl_xor_sync(0xffffffffU, total, distance);
    }
    sync_unit(h);  // everyone has read what was there before
    if (thread % 16 == 0) totals[thread / 16] = total;
    sync_unit(h);
    for (int i = kLookBack - 1; i >= 0; --i) {
      decay += totals[i];
      if (decay < forgotten) return {seen + kLookBack - i, true};
    }
    if (!worth_it(decay, seen + kLookBack)) break;
  }
  return {available, false};
}

/// The longest memory of the heads of a block; all its threads take part.
template <int kHeads, typename OfHead>
__device__ inline Memory memory_of_block(Memory (&memories)[kHeads], OfHead&& of_head) {
  const int h = static_cast<int>(threadIdx.x) / 128 - 1;
  __syncthreads();
  if (h >= 0) {
    const Memory memory = of_head(h);
    if (threadIdx.x % 128 == 0) memories[h] = memory;
  }
  __syncthreads();
  Memory longest = memories[0];
#pragma unroll
  for (int i = 1; i < kHeads; ++i) {
    longest.chunks = max(longest.chunks, memories[i].chunks);
    longest.bounded = longest.bounded && memories[i].bounded;
  }
  return longest;
}

/// Before its outputs, a block may find the state that its segment begins with by itself: always
/// where each does, else where memory is short.
template <typename T, int kSlices>
__device__ inline void begin_before_segment(const Params& p, Shared<kSlices, true>& shared,
                                            Place& place) {
  if (place.segment == 0 || p.start == SegmentStart::handed_over) return;
  const bool alone = p.start == SegmentStart::walked;
  const int available = (alone ? place.first_token : p.segment_tokens) / kChunk;
  const Memory memory = memory_of_block(shared.memories, [&](int h) {
    return memory_before<T>(p, place, h, place.first_token, available, kForgotten,
                            shared.chunk_totals[h], [&](float, int) { return alone; });
  });
  if (!alone && !memory.bounded) return;
  place.nwarm = memory.chunks;
  place.nchunks += memory.chunks;
  place.first_token -= memory.chunks * kChunk;
  place.is_handed_over = false;
}

/// Leaves out the chunks of a segment that all heads of the block have forgotten at its end. False
/// if nobody needs the end state: the next segment finds it by itself, and none of it is left after
/// that.
template <typename T, int kSlices>
__device__ inline bool leave_out_forgotten(const Params& p, Shared<kSlices, false>& shared,
                                           Place& place) {
  const int end = place.first_token + place.nchunks * kChunk;
  const auto memory_before_token = [&](int token, int available, auto&& worth_it) {
    return memory_of_block(shared.memories, [&](int h) {
      return memory_before<T>(p, place, h, token, available, kSurelyForgotten,
                              shared.chunk_totals[h], worth_it);
    });
  };
  // At such a rate the whole look costs no more than half of what it saves.
  const auto is_promising = [&](float decay, int chunks) {
    return kSurelyForgotten * static_cast<float>(2 * chunks) >=
           decay * static_cast<float>(place.nchunks);
  };
  const Memory memory = memory_before_token(end, place.nchunks, is_promising);
  place.first_token += (place.nchunks - memory.chunks) * kChunk;
  place.nchunks = memory.chunks;
  const bool is_short = memory.bounded && memory.chunks <= kLookBack;
  if (p.start == SegmentStart::handed_over || !is_short) return true;
  if (place.segment + 2 == p.nsegments) return false;
  const int next = min(kLookBack, p.segment_tokens / kChunk);  // chunks of the next segment
  const Memory later =
      memory_before_token(end + next * kChunk, next, [](float, int) { return false; });
  return !later.bounded;
}

}  // namespace adder::cuda::hopper
