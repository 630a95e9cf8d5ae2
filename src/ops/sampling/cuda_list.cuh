#pragma once

// A draw from tokens that are few enough for a block to sort: a token to a thread.

#include <cstdint>

#include "ops/sampling/cuda_block.cuh"
#include "ops/sampling/cuda_row.cuh"
#include "ops/sampling/weights.h"

namespace adder::cuda::sampling {

/// The weight of a token by its key; 0 of key 0, which is a NaN.
struct Weigher {
  float max;
  double inverse_temperature, scale;
  std::uint64_t least;  ///< what weighs less counts as nothing

  __device__ __forceinline__ std::uint64_t operator()(std::uint32_t key) const {
    const std::uint64_t weight = token_weight(logit_of(key), max, inverse_temperature, scale);
    return weight < least ? 0 : weight;
  }
  __device__ __forceinline__ Weigher of_all() const { return {max, inverse_temperature, scale, 0}; }
};

/// How many threads `yes` holds for, in every thread.
__device__ __forceinline__ int count_threads(bool yes) { return __syncthreads_count(yes ? 1 : 0); }

/// Puts the tokens whose keys are not below `threshold` into the list, in any order, and says how
/// many there are; beyond kListed they are not in the list. `by_group`: list.maxima says which
/// groups have some.
__device__ inline int list_from(const Row& row, std::uint32_t threshold, bool by_group,
                                Shared& shared) {
  auto& list = shared.list;
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  const int ngroups = (row.vocab_size + kGroupTokens - 1) / kGroupTokens;
#pragma unroll 1
  for (int group = warp_index(); group < ngroups; group += kWarps) {
    if (by_group && list.maxima[group] < threshold) continue;
    const int id = group * kGroupTokens + 4 * lane_index();
    std::uint32_t keys[4];
    row.keys(id, keys);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool listed = keys[i] != 0 && keys[i] >= threshold;
      const unsigned lanes = __ballot_sync(kFullWarp, listed);
      if (lanes == 0) continue;
      int place = 0;
      if (lane_index() == 0) place = atomicAdd(&shared.count, __popc(lanes));
      place = __shfl_sync(kFullWarp, place, 0) + __popc(lanes & ((1u << lane_index()) - 1));
      // Greater: likelier, or as likely with a lower id.
      const std::uint32_t order = ~static_cast<std::uint32_t>(id + i);
      if (listed && place < kListed) list.found[place] = std::uint64_t{keys[i]} << 32 | order;
    }
  }
  __syncthreads();
  return shared.count;
}

/// Likewise tokens among which are the k likeliest. `maxima`: the greatest key of each group.
__device__ inline int list_top_k(const Row& row, int k, const std::uint32_t* maxima, int ngroups,
                                 Shared& shared) {
  auto& list = shared.list;
  for (int i = static_cast<int>(threadIdx.x); i < ngroups; i += kThreads) {
    list.maxima[i] = __ldcg(maxima + i);
  }
  __syncthreads();
  // The k-th greatest of them, but for its last bits, which would spare few tokens, bit by bit. At
  // least k tokens reach it.
  std::uint32_t threshold = 0;
  for (int bit = 31; bit >= 8 && k <= ngroups; --bit) {
    const std::uint32_t higher = threshold | 1u << bit;
    int reached = 0;
    for (int first = 0; first < ngroups; first += kThreads) {
      const int i = first + static_cast<int>(threadIdx.x);
      reached += count_threads(i < ngroups && list.maxima[i] >= higher);
    }
    if (reached >= k) threshold = higher;
  }
  return list_from(row, threshold, true, shared);
}

/// How many of `listed` tokens in the list have a greater key.
__device__ __forceinline__ int count_greater(int listed, std::uint32_t key, const Shared& shared) {
  const auto me = static_cast<int>(threadIdx.x);
  return count_threads(me < listed && shared.list.found[me] >> 32 > key);
}

/// Steps 4 to 6 of sample_token (see sampling.h) for the `count` likeliest of `listed` tokens.
__device__ inline std::uint32_t draw_from_list(int listed, int count, float top_p,
                                               const Weigher& weigher, std::uint64_t random,
                                               Shared& shared) {
  auto& list = shared.list;
  const auto me = static_cast<int>(threadIdx.x);
  if (me < listed) {
    const std::uint64_t mine = list.found[me];
    int before = 0;
    for (int i = 0; i < listed; ++i) before += list.found[i] > mine ? 1 : 0;
    list.sorted[before] = mine;
  }
  __syncthreads();

  std::uint64_t weight = 0;
  if (me < count) weight = weigher.of_all()(static_cast<std::uint32_t>(list.sorted[me] >> 32));
  if (top_p < 1) {
    const Scan scan = block_scan(weight, shared);
    if (scan.before >= top_p_weight(top_p, scan.total)) weight = 0;
  }
  if (weight < weigher.least) weight = 0;
  const Scan scan = block_scan(weight, shared);
  const std::uint64_t target = drawn_weight(random, scan.total);
  const int drawn = count_threads(scan.before + weight <= target);
  return ~static_cast<std::uint32_t>(list.sorted[drawn]);
}

}  // namespace adder::cuda::sampling
