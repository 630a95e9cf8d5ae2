#pragma once

// The producer warps of the fused Hopper kernel: tiles through the copy engine, and prefix sums of
// dt. See hopper_kernel.cuh.

#include <cstdint>

#include "ops/ssd_forward/hopper_time_step.cuh"

namespace adder::cuda::hopper {

/// One warp for each head: its x and its sums; the first head's brings B and C for all. A lane has
/// the tokens 2 lane and 2 lane + 1 of every chunk.
template <typename T, int kSlices, bool kOutputs>
class Producer {
  using L = Layout<kSlices, kOutputs>;

 public:
  __device__ Producer(const Params& p, Shared<kSlices, kOutputs>& shared, int h)
      : p_(p),
        shared_(shared),
        h_(h),
        lane_(static_cast<int>(threadIdx.x) % 32),
        nchunks_(shared.place.nchunks) {}

  __device__ void run() {
    const Unit unit = unit_of(p_, shared_.place, h_);
    if (!unit.exists) return;  // the first head of a block always does
    if (lane_ == 0) {
      for (int c = 0; c < min(L::kStages, nchunks_); ++c) load_tiles(c);
    }
    const TimeSteps<T> dt(p_, shared_.place, unit);
    const float A_log2 = p_.A[unit.head] * kLog2E;
    // Raw values are fetched kAhead chunks before they are summed, and converted only then: a
    // conversion waits for its load.
    constexpr int kAhead = L::kSumsAhead;
    uint2 raw[kAhead];
    int token = shared_.place.first_token + 2 * lane_;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      raw[i] = {dt.bits(token + i * kChunk), dt.bits(token + i * kChunk + 1)};
    }
    for (int c = 0; c < nchunks_; c += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (c + i >= nchunks_) break;
        const float dt0 = dt.value(raw[i].x, token);
        const float dt1 = dt.value(raw[i].y, token + 1);
        raw[i] = {dt.bits(token + kAhead * kChunk), dt.bits(token + kAhead * kChunk + 1)};
        sum_chunk(c + i, log_decay(dt0, A_log2), log_decay(dt1, A_log2), log2_approx(dt0),
                  log2_approx(dt1));
        token += kChunk;
      }
    }
  }

 private:
  __device__ void wait_empty(Barrier* barrier, int c) const {
    wait(barrier, (static_cast<std::uint32_t>(c / L::kStages) & 1) ^ 1);
  }

  /// One thread.
  __device__ void load_tiles(int c) const {
    const Place& place = shared_.place;
    const int token = place.first_token + c * kChunk;
    const int stage = c % L::kStages;
    if (h_ == 0) {
      const int tiles = (kOutputs && c >= place.nwarm ? 2 : 1) * kSlices;
      Barrier* full = &shared_.bc_full[stage];
      wait_empty(&shared_.bc_empty[stage], c);
      arrive_expecting(full, tiles * kTileBytes);
      for (int i = 0; i < tiles; ++i) {
        load_box(shared_.bc[stage] + i * kTileBytes, i < kSlices ? p_.B : p_.C, full,
                 {i % kSlices * 64, place.group, token, place.batch});
      }
    }
    const Unit unit = unit_of(p_, place, h_);
    Barrier* full = &shared_.x_full[stage][h_];
    wait_empty(&shared_.x_empty[stage][h_], c);
    arrive_expecting(full, kTileBytes);
    load_box(shared_.x[stage][h_], p_.x, full, {unit.channel, unit.head, token, place.batch});
  }

  /// The prefix sums of a chunk, from log2 of the decays and of dt of the lane's two tokens, to
  /// shared memory, once there is room and its tiles are sent for.
  __device__ void sum_chunk(int c, float a0, float a1, float log_dt0, float log_dt1) const {
    float sum = a0 + a1;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float before = __shfl_up_sync(0xffffffffU, sum, distance);
      if (lane_ >= distance) sum += before;
    }
    // Not sum − a1: what a token gets must not depend on the one after it, by rounding neither.
    const float before = __shfl_up_sync(0xffffffffU, sum, 1);
    const float s0 = lane_ == 0 ? a0 : before + a0;
    const float last = __shfl_sync(0xffffffffU, sum, 31);
    const float last_of_sixteen = __shfl_sync(0xffffffffU, sum, lane_ | 7);
    if (c >= L::kStages && lane_ == 0) load_tiles(c);
    __syncwarp();
    const int stage = c % L::kStages;
    wait_empty(&shared_.x_empty[stage][h_], c);
    const auto store = [&](float* to, float even, float odd) {
      reinterpret_cast<float2*>(to)[lane_] = {even, odd};
    };
    store(shared_.sums[stage][h_], s0, sum);
    store(shared_.offsets[stage][h_], s0 - log_dt0, sum - log_dt1);
    // Not from the offsets, which are rounded where sums are large. (Those that weigh the diagonal
    // have only them.)
    const auto store_weights = [&](float* to, float end) {
      store(to, exp2_approx(end - s0 + log_dt0), exp2_approx(end - sum + log_dt1));
    };
    if constexpr (L::kStoreColumns) store_weights(shared_.columns[stage][h_], last_of_sixteen);
    if constexpr (L::kStoreWeights) store_weights(shared_.weights[stage][h_], last);
    arrive(&shared_.x_full[stage][h_]);
  }

  const Params& p_;
  Shared<kSlices, kOutputs>& shared_;
  const int h_, lane_, nchunks_;
};

}  // namespace adder::cuda::hopper
