#pragma once

// The producer warps of the fused Hopper kernel: tiles through the copy engine, and prefix sums of
// dt. See hopper_kernel.cuh.

#include <cstdint>

#include "ops/chunk_cumsum/time_step.cuh"
#include "ops/ssd_forward/hopper_layout.cuh"

namespace adder::cuda::hopper {

template <int kSlices, bool kOutputs>
__device__ inline void produce_bc(const Params& p, Shared<kSlices, kOutputs>& shared,
                                  const Place& place) {
  using L = Layout<kSlices, kOutputs>;
  const int rank = static_cast<int>(rank_in_cluster());
  const int rows = kChunk / p.cluster;
  const auto everyone = static_cast<std::uint16_t>((1 << p.cluster) - 1);
  RingPosition bc;
  for (int c = 0; c < place.nchunks; ++c) {
    const int token = place.first_token + c * kChunk;
    wait(&shared.bc_empty[bc.index], bc.parity ^ 1);
    Barrier* full = &shared.bc_full[bc.index];
    arrive_expecting(full, L::kBcBytes);
    unsigned char* tiles = shared.bc[bc.index] + rank * rows * 128;
    for (int i = 0; i < (kOutputs ? 2 : 1) * kSlices; ++i) {
      const CUtensorMap& map = i < kSlices ? p.B : p.C;
      const Box box{i % kSlices * 64, place.group, token + rank * rows, place.batch};
      if (p.cluster == 1) {
        load_box(tiles + i * kTileBytes, map, full, box);
      } else {
        load_box_multicast(tiles + i * kTileBytes, map, full, box, everyone);
      }
    }
    bc.advance(L::kBcStages);
  }
}

template <int kSlices, bool kOutputs>
__device__ inline void produce_x(const Params& p, Shared<kSlices, kOutputs>& shared,
                                 const Place& place) {
  using L = Layout<kSlices, kOutputs>;
  RingPosition xs;
  for (int c = 0; c < place.nchunks; ++c) {
    for (int h = 0; h < kHeads; ++h) {
      const Unit unit = unit_of(p, place, h);
      if (!unit.exists) continue;
      wait(&shared.x_empty[xs.index][h], xs.parity ^ 1);
      arrive_expecting(&shared.x_full[xs.index][h], kTileBytes);
      load_box(shared.x[xs.index][h], p.x, &shared.x_full[xs.index][h],
               {unit.channel, unit.head, place.first_token + c * kChunk, place.batch});
    }
    xs.advance(L::kXStages);
  }
}

__device__ inline float log_decay(float dt, float A_log2) {
  const float a = dt * A_log2;
  return a < kMinLogDecay ? kMinLogDecay : a;
}

/// The prefix sums of a chunk, of which the lane has two tokens, to shared memory.
template <int kSlices, bool kOutputs>
__device__ inline void sum_chunk(Shared<kSlices, kOutputs>& shared, int h, RingPosition& xs,
                                 float A_log2, float dt0, float dt1) {
  using L = Layout<kSlices, kOutputs>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float a0 = log_decay(dt0, A_log2);
  const float a1 = log_decay(dt1, A_log2);
  float sum = a0 + a1;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(0xffffffffU, sum, distance);
    if (lane >= distance) sum += before;
  }
  // Not sum − a1: what a token gets must not depend on the one after it, by rounding neither.
  const float before = __shfl_up_sync(0xffffffffU, sum, 1);
  const float s0 = lane == 0 ? a0 : before + a0;
  wait(&shared.x_empty[xs.index][h], xs.parity ^ 1);
  const float2 offset = {s0 - log2f(dt0), sum - log2f(dt1)};
  reinterpret_cast<float2*>(shared.sums[xs.index][h])[lane] = {s0, sum};
  reinterpret_cast<float2*>(shared.offsets[xs.index][h])[lane] = offset;
  if constexpr (L::kStoreWeights) {
    const float last = __shfl_sync(0xffffffffU, sum, 31);
    reinterpret_cast<float2*>(shared.weights[xs.index][h])[lane] = {exp2_approx(last - offset.x),
                                                                    exp2_approx(last - offset.y)};
  }
  arrive(&shared.x_full[xs.index][h]);
  xs.advance(L::kXStages);
}

/// One warp: lane l has the tokens 2 l and 2 l + 1 of every chunk.
template <typename T, int kSlices, bool kOutputs>
__device__ inline void produce_sums(const Params& p, Shared<kSlices, kOutputs>& shared,
                                    const Place& place, int h) {
  using L = Layout<kSlices, kOutputs>;
  const Unit unit = unit_of(p, place, h);
  if (!unit.exists) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float A_log2 = p.A[unit.head] * kLog2E;
  const float bias = p.dt_bias != nullptr ? p.dt_bias[unit.head] : 0.0F;
  const std::int64_t base = place.batch * p.dt_strides.batch + unit.head * p.dt_strides.head;
  // Raw values are fetched kAhead chunks before they are summed, and converted only then: a
  // conversion waits for its load.
  constexpr int kAhead = 3;
  const auto bits_at = [&](int token) -> std::uint32_t {
    if (token >= place.end_token) return 0;
    const std::int64_t offset = base + token * p.dt_strides.token;
    return p.dt_is_float ? static_cast<const std::uint32_t*>(p.dt)[offset]
                         : static_cast<const std::uint16_t*>(p.dt)[offset];
  };
  const auto value_of = [&](std::uint32_t bits) {
    return p.dt_is_float ? __uint_as_float(bits) : unpack<T>(bits).x;
  };
  uint2 raw[kAhead];
  int token = place.first_token + 2 * lane;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    raw[i] = {bits_at(token + i * kChunk), bits_at(token + i * kChunk + 1)};
  }
  RingPosition xs;
  for (int c = 0; c < place.nchunks; c += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (c + i >= place.nchunks) break;
      const float raw0 = value_of(raw[i].x);
      const float raw1 = value_of(raw[i].y);
      raw[i] = {bits_at(token + kAhead * kChunk), bits_at(token + kAhead * kChunk + 1)};
      sum_chunk<kSlices, kOutputs>(
          shared, h, xs, A_log2,
          token < place.end_token ? time_step(raw0 + bias, p.dt_options) : 0.0F,
          token + 1 < place.end_token ? time_step(raw1 + bias, p.dt_options) : 0.0F);
      token += kChunk;
    }
  }
}

}  // namespace adder::cuda::hopper
