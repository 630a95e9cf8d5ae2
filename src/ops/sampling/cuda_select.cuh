#pragma once

// A draw from a whole row by one block, whatever the parameters. It needs no memory and no sorted
// order: what decides, the token at which the weights, likeliest first, reach some sum, is found
// digit by digit of its key, 11 bits at a time, each time with the sum of weights for every digit
// among those that share the digits found so far. Three passes over the row, out of the L2 cache,
// the first of which computes a weight for every token, about 40 float64 operations each. For
// 50,280 tokens that is some 20 us of a multiprocessor of an H200; top_p asks for it twice, unless
// it leaves few enough to be sorted.

#include <cstdint>

#include "ops/sampling/cuda_list.cuh"

namespace adder::cuda::sampling {

struct One {
  __device__ __forceinline__ std::uint64_t operator()(std::uint32_t) const { return 1; }
};

/// The tokens whose keys are greater, and of those equal, the `equals` of the lowest ids.
struct Kept {
  std::uint32_t key, equals;
};

/// A token by its rank: `equal` of the tokens with this key have lower ids.
struct Ranked {
  std::uint32_t key, equal;
};

/// histogram[digit] += v in every lane, v being 0 where there is nothing to add.
__device__ __forceinline__ void add_to_histogram(std::uint32_t digit, std::uint64_t v,
                                                 Shared& shared) {
  const auto add = [&](std::uint64_t sum) {
    const auto low = static_cast<std::uint32_t>(sum);
    const std::uint32_t old = atomicAdd(&shared.histogram.low[digit], low);
    // Whoever wraps around carries.
    const std::uint32_t high = static_cast<std::uint32_t>(sum >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0) atomicAdd(&shared.histogram.high[digit], high);
  };
  const unsigned adding = __ballot_sync(kFullWarp, v != 0);
  if (adding == 0) return;
  const int leader = __ffs(static_cast<int>(adding)) - 1;
  const std::uint32_t first = __shfl_sync(kFullWarp, digit, leader);
  // One addition where all are for the same digit, as they are for many equal logits.
  if (__ballot_sync(kFullWarp, v != 0 && digit != first) == 0) {
    const std::uint64_t sum = warp_sum(v);
    if (lane_index() == leader) add(sum);
  } else if (v != 0) {
    add(v);
  }
}

/// The token, likeliest first among those kept, up to which the weights first sum to more than
/// `target_of(sum of all)`, which must be less than the sum.
template <typename Weight, typename TargetOf>
__device__ Ranked find_by_rank(const Row& row, Kept kept, const Weight& weight,
                               const TargetOf& target_of, Shared& shared) {
  constexpr int kPerThread = kDigits / kThreads;
  std::uint32_t prefix = 0;
  std::uint64_t before = 0;
  std::uint64_t target = 0;
#pragma unroll 1
  for (int level = 0; level < 3; ++level) {
    const int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
    const int bits = level < 2 ? 11 : 10;
    const std::uint32_t mask = (1u << bits) - 1;
    const auto counts = [&](std::uint32_t key) {
      return level == 0 || key >> shift >> bits == prefix;
    };
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
      shared.histogram.low[i] = 0;
      shared.histogram.high[i] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int base = 0; base < row.vocab_size; base += kTileTokens) {
      std::uint32_t keys[4];
      row.keys(base + 4 * static_cast<int>(threadIdx.x), keys);
      bool any = false;
#pragma unroll
      for (std::uint32_t key : keys) any = any || (key > kept.key && counts(key));
      if (!__any_sync(kFullWarp, any)) continue;
      // Of all four without a branch, so that each fills the waits of the others.
      std::uint64_t weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[i] = weight(keys[i]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool in = keys[i] > kept.key && counts(keys[i]);
        add_to_histogram(keys[i] >> shift & mask, in ? weights[i] : 0, shared);
      }
    }
    if (threadIdx.x < kWarpSize && kept.equals != 0 && counts(kept.key)) {
      const std::uint64_t v = lane_index() == 0 ? kept.equals * weight(kept.key) : 0;
      add_to_histogram(kept.key >> shift & mask, v, shared);
    }
    __syncthreads();

    // Thread 0 has the greatest digits.
    const int greatest = kDigits - 1 - kPerThread * static_cast<int>(threadIdx.x);
    std::uint64_t sums[kPerThread];
    std::uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      sums[i] = std::uint64_t{shared.histogram.high[greatest - i]} << 32 |
                shared.histogram.low[greatest - i];
      sum += sums[i];
    }
    const Scan scan = block_scan(sum, shared);
    if (level == 0) target = target_of(scan.total);
    std::uint64_t reached = before + scan.before;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (target >= reached && target - reached < sums[i]) {
        shared.digit = static_cast<std::uint32_t>(greatest - i);
        shared.before = reached;
      }
      reached += sums[i];
    }
    __syncthreads();
    prefix = prefix << bits | shared.digit;
    before = shared.before;
  }
  return {prefix, static_cast<std::uint32_t>((target - before) / weight(prefix))};
}

/// The token, by id, up to which the weights first sum to more than `target_of(sum of all)`. Key 0
/// must weigh 0.
template <typename Weight, typename TargetOf>
__device__ std::uint32_t find_by_id(const Row& row, const Weight& weight, const TargetOf& target_of,
                                    Shared& shared) {
  const auto four_weights = [&](int id, std::uint64_t(&out)[4]) {
    std::uint32_t keys[4];
    row.keys(id, keys);
    std::uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = weight(keys[i]);
      sum += out[i];
    }
    return sum;
  };

  // Each warp sums a run of adjacent tokens; then all look at the run that it is in.
  const int run =
      (row.vocab_size + kWarps * kGroupTokens - 1) / (kWarps * kGroupTokens) * kGroupTokens;
  std::uint64_t sum = 0;
  for (int i = 4 * lane_index(); i < run; i += kGroupTokens) {
    std::uint64_t weights[4];
    sum += four_weights(warp_index() * run + i, weights);
  }
  const Scan scan = block_scan(sum, shared);
  const std::uint64_t target = target_of(scan.total);
  if (target >= scan.before && target - scan.before < sum) {
    shared.digit = static_cast<std::uint32_t>(warp_index());
  }
  // The sum before a run is that before its first lane.
  if (lane_index() == 0) shared.sums[warp_index()] = scan.before;
  __syncthreads();
  const int first = static_cast<int>(shared.digit) * run;
  std::uint64_t reached = shared.sums[shared.digit];
  __syncthreads();

#pragma unroll 1
  for (int base = first; base < first + run; base += kTileTokens) {
    const int offset = base - first + 4 * static_cast<int>(threadIdx.x);
    std::uint64_t weights[4] = {};
    const std::uint64_t four = offset < run ? four_weights(first + offset, weights) : 0;
    const Scan tile = block_scan(four, shared);
    std::uint64_t before = reached + tile.before;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (target >= before && target - before < weights[i]) {
        shared.id = static_cast<std::uint32_t>(first + offset + i);
      }
      before += weights[i];
    }
    reached += tile.total;
    if (reached > target) break;
  }
  __syncthreads();
  return shared.id;
}

/// Steps 3 to 6 of sample_token (see sampling.h). `weigher.least` is that of min_p.
__device__ inline std::uint32_t draw_from_row(const Row& row, const SamplingParams& params,
                                              const Weigher& weigher, std::uint64_t random,
                                              Shared& shared) {
  const auto drawn = [&](std::uint64_t sum) { return drawn_weight(random, sum); };
  const bool narrowed = params.top_k > 0 && params.top_k < row.vocab_size;
  if (!narrowed && !(params.top_p < 1)) return find_by_id(row, weigher, drawn, shared);

  Kept kept{0, 0};
  if (narrowed) {
    const auto last = [&](std::uint64_t) { return static_cast<std::uint64_t>(params.top_k) - 1; };
    const Ranked found = find_by_rank(row, kept, One{}, last, shared);
    kept = {found.key, found.equal + 1};
  }
  if (params.top_p < 1) {
    const auto last = [&](std::uint64_t sum) { return top_p_weight(params.top_p, sum) - 1; };
    const Ranked found = find_by_rank(row, kept, weigher.of_all(), last, shared);
    kept = {found.key, found.equal + 1};
  }
  const int listed = list_from(row, kept.key, false, shared);
  if (listed <= kListed) {
    const int count = count_greater(listed, kept.key, shared) + static_cast<int>(kept.equals);
    return draw_from_list(listed, count, 1.0F, weigher, random, shared);
  }
  const Ranked token = find_by_rank(row, kept, weigher, drawn, shared);
  const auto is_equal = [&](std::uint32_t key) { return key == token.key ? 1ull : 0ull; };
  return find_by_id(
      row, is_equal, [&](std::uint64_t) { return std::uint64_t{token.equal}; }, shared);
}

}  // namespace adder::cuda::sampling
