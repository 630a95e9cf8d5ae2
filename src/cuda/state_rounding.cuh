#pragma once

// Recurrent states in bf16: arithmetic is float32, and what is stored is rounded up or down at
// random, up with the probability that is the part of the way from the lower to the upper of its
// two neighbours. So the mean of what is stored is what was computed. To nearest it would not be:
// a state that a step multiplies by 0.999 moves by a quarter of a unit in the last place at most,
// so it would be rounded back to what it was, for good.
//
// The random numbers are a hash of the old elements that a warp holds, of the new one and of its
// place. They need no counter, so that a state remains a value: the same state and the same token
// give the same bits in any row of a batch, in a graph and after a snapshot. Tried and lost: a hash
// of the new element and its place alone. Where a token comes again and again, its inputs are the
// same bits, so an element that stayed once stays for ever; among hundreds of them, one moves.

#include <cstdint>

#include "adder/dtype.h"
#include "cuda/math.cuh"
#include "cuda/vector.cuh"

namespace adder::cuda {

/// Whether states of this type are rounded when they are stored.
template <typename State>
inline constexpr bool kRoundsState = sizeof(State) < sizeof(float);

/// Where a loop ends whose turns take `step` of `size` elements: lanes that share a key must all go
/// on for as long as one has elements.
template <typename State, int kStep>
__device__ __forceinline__ std::int64_t loop_end(std::int64_t size) {
  return kRoundsState<State> ? (size + kStep - 1) / kStep * kStep : size;
}

/// A key that the elements of a pack as they lie in memory have become part of.
template <typename State, int N>
__device__ __forceinline__ std::uint32_t fold_key(std::uint32_t key, const Pack<State, N>& pack) {
  constexpr std::uint32_t kFactor = 0x9e3779b1u;
  if constexpr (N * sizeof(State) < sizeof(std::uint32_t)) return key * kFactor + pack.memory;
  const auto* words = reinterpret_cast<const std::uint32_t*>(&pack.memory);
#pragma unroll
  for (int i = 0; i < N * static_cast<int>(sizeof(State)) / 4; ++i) key = key * kFactor + words[i];
  return key;
}

/// The key of some lanes of a warp from the lanes' own, which should differ where elements do not;
/// all of them call it with the same `lanes`.
__device__ __forceinline__ std::uint32_t shared_key(std::uint32_t own, unsigned lanes) {
  return __reduce_xor_sync(lanes, own);
}

/// Sixteen random bits above and sixteen below.
__device__ __forceinline__ std::uint32_t random_bits(std::uint32_t first, std::uint32_t second,
                                                     std::uint32_t key) {
  std::uint32_t h = second * 0xc2b2ae35u + (first * 0x85ebca6bu + key);
  h = (h ^ (h >> 15)) * 0x2c1b3c6du;
  return h ^ (h >> 13);
}

/// The bits of a float whose upper half is `v` rounded by `random` of 16 bits; NaN remains one.
__device__ __forceinline__ std::uint32_t round_by(float v, std::uint32_t random) {
  return v != v ? 0x7fc00000u : __float_as_uint(v) + random;
}

/// N elements as they are stored. `key` differs from that of other elements of the same warp.
template <typename State, int N>
__device__ __forceinline__ Pack<State, N> round_state(const float (&in)[N], std::uint32_t key) {
  if constexpr (!kRoundsState<State>) {
    return from_floats<State>(in);
  } else if constexpr (N == 1) {
    const std::uint32_t random = random_bits(__float_as_uint(in[0]), 0, key);
    return {static_cast<unsigned short>(round_by(in[0], random >> 16) >> 16)};
  } else {
    Pack<State, N> pack;
    auto* words = reinterpret_cast<std::uint32_t*>(&pack.memory);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const std::uint32_t random =
          random_bits(__float_as_uint(in[i]), __float_as_uint(in[i + 1]), key + i);
      words[i / 2] = round_by(in[i], random & 0xffffu) >> 16 |
                     (round_by(in[i + 1], random >> 16) & 0xffff0000u);
    }
    return pack;
  }
}

}  // namespace adder::cuda
