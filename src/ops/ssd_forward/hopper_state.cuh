#pragma once

// The state of a head on its way through the chunks of a segment: what the end states and the
// outputs have in common. See hopper_kernel.cuh for the whole.

#include <cstdint>

#include "ops/ssd_forward/hopper_layout.cuh"

namespace adder::cuda::hopper {

/// A warpgroup with the state of one head. Thread fragments are those of multiply_64x64x16.
template <typename T, int kSlices, bool kOutputs>
class State {
  using L = Layout<kSlices, kOutputs>;

 public:
  __device__ State(const Params& p, Shared<kSlices, kOutputs>& shared, const Place& place, int h)
      : p_(p),
        shared_(shared),
        place_(place),
        unit_(unit_of(p, place, h)),
        h_(h),
        thread_(static_cast<int>(threadIdx.x) % 128),
        warp_(__shfl_sync(0xffffffffU, thread_ / 32, 0)),  // known to be the same in the warp
        lane_(thread_ % 32),
        row_(16 * warp_ + lane_ / 4),
        column_(2 * (lane_ % 4)) {}

  /// The end state from zero of a segment, for the next one.
  __device__ void run() {
    if (!unit_.exists) return release_all_bc();
    start_state();
    const float log_decay = walk_without_outputs();
    save_segment(log_decay);
  }

 protected:
  // ---- the state ----

  __device__ std::int64_t segment_index(int segment) const {
    const std::int64_t units = p_.heads_per_group * p_.parts_per_head;
    const std::int64_t groups = gridDim.x / p_.blocks_per_group;
    return ((place_.batch * groups + place_.group) * units + unit_.index) * p_.nsegments + segment;
  }

  __device__ float4* segment_state(int segment) const {
    return p_.segment_states + segment_index(segment) * (8 * kSlices * 128) + thread_;
  }

  /// Calls visit(value pair's slice, register, channel, state column) for all register pairs.
  template <typename Visit>
  __device__ void each_pair(Visit&& visit) {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        visit(S_[s][4 * j], S_[s][4 * j + 1], unit_.channel + row_, 64 * s + 8 * j + column_);
        visit(S_[s][4 * j + 2], S_[s][4 * j + 3], unit_.channel + row_ + 8,
              64 * s + 8 * j + column_);
      }
    }
  }

  __device__ void start_state() {
    each_pair([](float& a, float& b, int, int) { a = b = 0.0F; });
    if constexpr (!kOutputs) return;
    if (p_.nsegments > 1) {
      wait_for_previous_kernel();
      const float4* from = segment_state(place_.segment);
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float4 v = from[(8 * s + j) * 128];
          S_[s][4 * j] = v.x;
          S_[s][4 * j + 1] = v.y;
          S_[s][4 * j + 2] = v.z;
          S_[s][4 * j + 3] = v.w;
        }
      }
    } else if (p_.initial_states != nullptr) {
      const float* from = p_.initial_states + place_.batch * p_.initial_strides.batch +
                          unit_.head * p_.initial_strides.head;
      each_pair([&](float& a, float& b, int channel, int n) {
        const float* row = from + channel * p_.initial_strides.token;
        if (channel < p_.headdim && n < p_.dstate) a = row[n];
        if (channel < p_.headdim && n + 1 < p_.dstate) b = row[n + 1];
      });
    }
  }

  __device__ void save_segment(float log_decay) const {
    float4* to = segment_state(place_.segment + 1);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        to[(8 * s + j) * 128] = {S_[s][4 * j], S_[s][4 * j + 1], S_[s][4 * j + 2],
                                 S_[s][4 * j + 3]};
      }
    }
    if (thread_ == 0) p_.segment_decays[segment_index(place_.segment)] = log_decay;
  }

  __device__ void save_final_state() {
    if (p_.final_states == nullptr || place_.segment != p_.nsegments - 1) return;
    float* to = p_.final_states + place_.batch * p_.final_strides.batch +
                unit_.head * p_.final_strides.head;
    each_pair([&](float a, float b, int channel, int n) {
      float* row = to + channel * p_.final_strides.token;
      if (channel < p_.headdim && n < p_.dstate) row[n] = a;
      if (channel < p_.headdim && n + 1 < p_.dstate) row[n + 1] = b;
    });
  }

  __device__ std::uint32_t state_tile(int which, int slice) const {
    return to_shared(shared_.states[h_][which]) + slice * kTileBytes;
  }

  /// The state in 16 bits, [channel][64 n] a slice, for the next chunk's products with C.
  __device__ void store_state_tile(int which) {
    const int matrix = lane_ / 8;
    const int row = 16 * warp_ + matrix % 2 * 8 + lane_ % 8;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        store_matrices(state_tile(which, s) + swizzled(row, j + matrix / 2),
                       pack<T>(S_[s][4 * j], S_[s][4 * j + 1]),
                       pack<T>(S_[s][4 * j + 2], S_[s][4 * j + 3]),
                       pack<T>(S_[s][4 * j + 4], S_[s][4 * j + 5]),
                       pack<T>(S_[s][4 * j + 6], S_[s][4 * j + 7]));
      }
    }
  }

  __device__ void decay_state(float decay) {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 32; ++i) S_[s][i] *= decay;
    }
  }

  // ---- one chunk ----

  __device__ void sync_head() const { sync_threads_of(1 + h_, 128); }

  /// For a unit that does not exist. It waits like the others: a tile released before it came would
  /// count for the one before it.
  __device__ void release_all_bc() {
    for (int c = 0; c < place_.nchunks; ++c) {
      wait(&shared_.bc_full[bc_.index], bc_.parity);
      release_bc();
    }
  }

  __device__ void release_bc() {
    if (lane_ < p_.cluster) {
      if (p_.cluster == 1) {
        arrive(&shared_.bc_empty[bc_.index]);
      } else {
        arrive_at(&shared_.bc_empty[bc_.index], static_cast<std::uint32_t>(lane_));
      }
    }
    bc_.advance(L::kBcStages);
  }

  /// A chunk's x as it lies in operand A of the state's product, 64 channels × 64 tokens, and the
  /// weights 2^(s_last − t) of its tokens.
  struct XOperand {
    std::uint32_t x[4][4];
    float2 near[4], far[4];
  };

  /// Shared memory to registers. Whatever reads shared memory comes before the products that are to
  /// overlap with it: behind them it would wait in their queue.
  __device__ void load_x(XOperand& operand, float last) const {
    const std::uint32_t tile = to_shared(shared_.x[xs_.index][h_]);
    const int matrix = lane_ / 8;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_x4_trans(operand.x[k], tile + swizzled(16 * k + matrix / 2 * 8 + lane_ % 8,
                                                      2 * warp_ + matrix % 2));
      operand.near[k] = x_weights(16 * k + column_, last);
      operand.far[k] = x_weights(16 * k + 8 + column_, last);
    }
  }

  __device__ void load_x_step(std::uint32_t (&x)[4], int k) const {
    const std::uint32_t tile = to_shared(shared_.x[xs_.index][h_]);
    const int matrix = lane_ / 8;
    ldmatrix_x4_trans(x,
                      tile + swizzled(16 * k + matrix / 2 * 8 + lane_ % 8, 2 * warp_ + matrix % 2));
  }

  /// 2^(s_last − t) of a token and the next.
  __device__ float2 x_weights(int token, float last) const {
    if constexpr (L::kStoreWeights) {
      return *reinterpret_cast<const float2*>(shared_.weights[xs_.index][h_] + token);
    } else {
      const float2 t = *reinterpret_cast<const float2*>(shared_.offsets[xs_.index][h_] + token);
      return {exp2_approx(last - t.x), exp2_approx(last - t.y)};
    }
  }

  /// 2^(s_last − t_j) x_j.
  __device__ static void weigh_x(std::uint32_t (&weighted)[4][4], const XOperand& operand) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weighted[k][i] = operand.x[k][i];
      weigh_step(weighted[k], operand.near[k], operand.far[k]);
    }
    pin(weighted);
  }

  __device__ static void weigh_step(std::uint32_t (&x)[4], const float2& near, const float2& far) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 value = unpack<T>(x[i]);
      const float2 weight = i < 2 ? near : far;
      x[i] = pack<T>(value.x * weight.x, value.y * weight.y);
    }
  }

  /// state += operand · B.
  __device__ void add_to_state(const std::uint32_t (&operand)[4][4]) {
    const std::uint64_t B = describe_tile(to_shared(shared_.bc[bc_.index]));
    pin_state();
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        multiply_64x64x16<T, Operand::n_contiguous>(
            S_[s], operand[k], B + tile_offset(s * kTileBytes + 2048 * k), true);
      }
    }
    commit_products();
  }

  /// The end state from zero; returns the sum of dt A log2(e). The next chunk's x is weighed while
  /// this one's product runs; two operands take turns.
  __device__ float walk_without_outputs() {
    XOperand x;
    std::uint32_t even[4][4];
    std::uint32_t odd[4][4];
    log_decay_ = 0.0F;
    take_x(x);
    weigh_x(even, x);
    int left = place_.nchunks;
    for (; left > 2; left -= 2) {
      add_chunk<false>(even, odd);
      add_chunk<false>(odd, even);
    }
    if (left == 2) {
      add_chunk<false>(even, odd);
      add_chunk<true>(odd, even);
    } else {
      add_chunk<true>(even, odd);
    }
    return log_decay_;
  }

  template <bool kLast>
  __device__ void add_chunk(std::uint32_t (&operand)[4][4], std::uint32_t (&next)[4][4]) {
    XOperand x;
    log_decay_ += last_;
    decay_state(exp2_approx(last_));
    if constexpr (!kLast) take_x(x);
    wait(&shared_.bc_full[bc_.index], bc_.parity);
    add_to_state(operand);
    if constexpr (!kLast) weigh_x(next, x);
    wait_products<0>();
    pin_state();
    pin(operand);
    release_bc();
  }

  /// The x of the next chunk, whose tile it frees, and the chunk's last sum.
  __device__ void take_x(XOperand& operand) {
    wait(&shared_.x_full[xs_.index][h_], xs_.parity);
    last_ = shared_.sums[xs_.index][h_][kChunk - 1];
    load_x(operand, last_);
    release_x();
  }

  /// Frees the current x tile and its sums: a thread is done with them.
  __device__ void release_x() {
    arrive(&shared_.x_empty[xs_.index][h_]);
    xs_.advance(L::kXStages);
  }

  __device__ void pin_state() {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) pin(S_[s]);
  }

  const Params& p_;
  Shared<kSlices, kOutputs>& shared_;
  const Place& place_;
  const Unit unit_;
  const int h_, thread_, warp_, lane_, row_, column_;
  RingPosition bc_, xs_;
  float last_ = 0.0F;
  float log_decay_ = 0.0F;
  float S_[kSlices][32];
};

}  // namespace adder::cuda::hopper
