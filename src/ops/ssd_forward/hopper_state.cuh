#pragma once

// The state of a head on its way through the chunks of a segment: what the end states and the
// outputs have in common. See hopper_kernel.cuh for the whole.

#include <cstdint>

#include "ops/ssd_forward/hopper_layout.cuh"

namespace adder::cuda::hopper {

/// A warpgroup with the state of one head. Thread fragments are those of multiply_64x64x16. Places
/// in shared memory are kept as one address a pattern of access: registers decide how many heads a
/// block can have.
template <typename T, int kSlices, bool kOutputs>
class State {
  using L = Layout<kSlices, kOutputs>;

 public:
  __device__ State(const Params& p, Shared<kSlices, kOutputs>& shared, int h)
      : p_(p),
        shared_(shared),
        h_(h),
        thread_(static_cast<int>(threadIdx.x) % 128),
        warp_(__shfl_sync(0xffffffffU, thread_ / 32, 0)) {  // known to be the same in the warp
    const int matrix = thread_ % 32 / 8;
    x_place_ =
        to_shared(shared.x[0][h]) + swizzled(matrix / 2 * 8 + thread_ % 8, 2 * warp_ + matrix % 2);
  }

  /// The end state from zero of a segment, for the next one.
  __device__ void run() {
    static_assert(!kOutputs);
    if (!unit().exists) return release_all_bc();
    start_state();
    const float log_decay = walk_without_outputs(place().nchunks);
    save_segment(place().segment + 1);
    if (thread_ == 0) {
      p_.segment_decays[segment_index(p_, place(), unit(), place().segment)] = log_decay;
    }
  }

 protected:
  // ---- the state ----

  __device__ int lane() const { return renewed(thread_) % 32; }
  /// Of the thread's fragments: the first row, and the first of two columns.
  __device__ int row() const {
    const int thread = renewed(thread_);
    return thread / 32 * 16 + thread % 32 / 4;
  }
  __device__ int column() const { return renewed(thread_) % 4 * 2; }

  /// Read from shared memory, as needed: it is not needed often.
  __device__ const Place& place() const { return shared_.place; }
  __device__ Unit unit() const { return unit_of(p_, place(), h_); }

  __device__ float4* segment_state(int segment) const {
    return p_.segment_states + segment_index(p_, place(), unit(), segment) * (8 * kSlices * 128) +
           thread_;
  }

  /// Calls visit(where they lie in `states`, two neighbours of the thread's elements of the state,
  /// how many of the two exist).
  template <typename Element, typename Visit>
  __device__ void each_pair(Element* states, const Strides& strides, Visit&& visit) {
    const Unit unit = this->unit();
    Element* first = states + place().batch * strides.batch + unit.head * strides.head +
                     (unit.channel + row()) * strides.token + column();
    const int channels = p_.headdim - unit.channel - row();
    const int columns = p_.dstate - column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (8 * half >= channels) break;
      Element* row = first + 8 * half * strides.token;
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int n = 64 * s + 8 * j;
          float* pair = S_[s] + 4 * j + 2 * half;
          visit(row + n, pair[0], pair[1], min(columns - n, 2));
        }
      }
    }
  }

  __device__ void start_state() {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 32; ++i) S_[s][i] = 0.0F;
    }
    if constexpr (kOutputs) {
      if (place().is_cut_before) {
        load_cut();
      } else if (place().is_handed_over) {
        wait_for_previous_kernel();
        load_segment();
      } else if (place().first_token == 0 && p_.initial_states != nullptr) {
        each_pair(p_.initial_states, p_.initial_strides,
                  [](const float* from, float& first, float& second, int count) {
                    if (count > 0) first = from[0];
                    if (count > 1) second = from[1];
                  });
      }
    }
  }

  __device__ void load_segment() {
    const float4* from = segment_state(place().segment);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 v = __ldcg(from + (8 * s + j) * 128);
        S_[s][4 * j] = v.x;
        S_[s][4 * j + 1] = v.y;
        S_[s][4 * j + 2] = v.z;
        S_[s][4 * j + 3] = v.w;
      }
    }
  }

  __device__ void save_segment(int segment) const {
    float4* to = segment_state(segment);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        to[(8 * s + j) * 128] = {S_[s][4 * j], S_[s][4 * j + 1], S_[s][4 * j + 2],
                                 S_[s][4 * j + 3]};
      }
    }
  }

  // What another block goes on with.

  __device__ unsigned* cut() const { return p_.cuts + segment_index(p_, place(), unit(), 0); }

  __device__ void save_cut() const {
    save_segment(0);
    __threadfence();
    sync_head();
    if (thread_ == 0) store_release(cut(), 1);
  }

  __device__ void load_cut() {
    if (thread_ == 0) {
      while (load_acquire(cut()) == 0) __nanosleep(100);
    }
    sync_head();
    load_segment();
  }

  __device__ void save_final_state() {
    if (p_.final_states == nullptr || place().segment != p_.nsegments - 1) return;
    if (p_.final_states_in_pairs) {
      each_pair(p_.final_states, p_.final_strides,
                [](float* to, float first, float second, int count) {
                  if (count > 0) *reinterpret_cast<float2*>(to) = {first, second};
                });
    } else {
      each_pair(p_.final_states, p_.final_strides,
                [](float* to, float first, float second, int count) {
                  if (count > 0) to[0] = first;
                  if (count > 1) to[1] = second;
                });
    }
  }

  __device__ void decay_state(float decay) {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 32; ++i) S_[s][i] *= decay;
    }
  }

  __device__ void pin_state() {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) pin(S_[s]);
  }

  // ---- one chunk ----

  __device__ void sync_head() const { sync_unit(h_); }

  __device__ static constexpr int stage_of(int c) { return c % L::kStages; }

  __device__ void wait_bc(int c) const {
    wait(&shared_.bc_full[stage_of(c)], static_cast<std::uint32_t>(c / L::kStages) & 1);
  }
  /// For x and the sums.
  __device__ void wait_x(int c) const {
    wait(&shared_.x_full[stage_of(c)][h_], static_cast<std::uint32_t>(c / L::kStages) & 1);
  }

  /// For a unit that does not exist. It waits like the others: a tile released before it came would
  /// count for the one before it.
  __device__ void release_all_bc() {
    const int nchunks = place().nchunks;
    for (int c = 0; c < nchunks; ++c) {
      wait_bc(c);
      release_bc(c);
    }
  }

  __device__ void release_bc(int c) const {
    if (lane() == 0) arrive(&shared_.bc_empty[stage_of(c)]);
  }

  /// Frees the x tile of a chunk and its sums: the warp is done with them.
  __device__ void release_x(int c) const {
    __syncwarp();
    if (lane() == 0) arrive(&shared_.x_empty[stage_of(c)][h_]);
  }

  __device__ float last_sum(int c) const { return shared_.sums[stage_of(c)][h_][kChunk - 1]; }

  /// Operand A of the state's product, 64 channels × 64 tokens: x as it is.
  __device__ void load_x(std::uint32_t (&x)[4][4], int c) const {
    const std::uint32_t at = x_place_ + stage_of(c) * (L::kHeads * kTileBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) ldmatrix_x4_trans(x[k], at + 2048 * k);
  }

  /// 2^(s_last − t) of a token and the next.
  __device__ float2 x_weights(int c, int token, float last) const {
    if constexpr (L::kStoreWeights) {
      return *reinterpret_cast<const float2*>(shared_.weights[stage_of(c)][h_] + token);
    } else {
      const float2 t = *reinterpret_cast<const float2*>(shared_.offsets[stage_of(c)][h_] + token);
      return {exp2_approx(last - t.x), exp2_approx(last - t.y)};
    }
  }

  __device__ static void weigh_step(std::uint32_t (&x)[4], const float2& near, const float2& far) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 value = unpack<T>(x[i]);
      const float2 weight = i < 2 ? near : far;
      x[i] = pack<T>(value.x * weight.x, value.y * weight.y);
    }
  }

  __device__ void weigh_x(std::uint32_t (&x)[4][4], int c, float last) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      weigh_step(x[k], x_weights(c, 16 * k + column(), last),
                 x_weights(c, 16 * k + 8 + column(), last));
    }
    pin(x);
  }

  /// 2^(s_last − t_j) x_j from shared memory. Whatever reads shared memory comes before the
  /// products that are to overlap with it: behind them it would wait in their queue.
  __device__ void load_weighted_x(std::uint32_t (&x)[4][4], int c, float last) const {
    load_x(x, c);
    weigh_x(x, c, last);
  }

  /// state += operand · B.
  __device__ void add_to_state(const std::uint32_t (&operand)[4][4], int c) {
    const std::uint64_t B = describe_tile(to_shared(shared_.bc[stage_of(c)]));
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

  /// A chunk without outputs, in fewer registers than a walk over many takes.
  __device__ void warm_chunk(int c) {
    std::uint32_t x[4][4];
    take_x(x, c);
    decay_state(exp2_approx(last_));
    wait_bc(c);
    add_to_state(x, c);
    wait_products<0>();
    pin_state();
    pin(x);
    release_bc(c);
  }

  /// Chunks 0 to nchunks − 1, of which there is one at least; returns the sum of dt A log2(e). The
  /// next chunk's x is weighed while this one's product runs; two operands take turns.
  __device__ float walk_without_outputs(int nchunks) {
    std::uint32_t even[4][4];
    std::uint32_t odd[4][4];
    log_decay_ = 0.0F;
    take_x(even, 0);
    int c = 0;
    for (; c + 2 < nchunks; c += 2) {
      add_chunk<false>(even, odd, c);
      add_chunk<false>(odd, even, c + 1);
    }
    if (c + 2 == nchunks) {
      add_chunk<false>(even, odd, c);
      add_chunk<true>(odd, even, c + 1);
    } else {
      add_chunk<true>(even, odd, c);
    }
    return log_decay_;
  }

  template <bool kLast>
  __device__ void add_chunk(std::uint32_t (&operand)[4][4], std::uint32_t (&next)[4][4], int c) {
    log_decay_ += last_;
    decay_state(exp2_approx(last_));
    wait_bc(c);
    add_to_state(operand, c);
    if constexpr (!kLast) take_x(next, c + 1);
    wait_products<0>();
    pin_state();
    pin(operand);
    release_bc(c);
  }

  /// The weighted x of a chunk, whose tile it frees, and the chunk's last sum.
  __device__ void take_x(std::uint32_t (&operand)[4][4], int c) {
    wait_x(c);
    last_ = last_sum(c);
    load_weighted_x(operand, c, last_);
    release_x(c);
  }

  const Params& p_;
  Shared<kSlices, kOutputs>& shared_;
  const int h_, thread_, warp_;
  std::uint32_t x_place_;  // of the thread's rows of x, as ldmatrix wants them
  float last_ = 0.0F;
  float log_decay_ = 0.0F;
  float S_[kSlices][32];
};

}  // namespace adder::cuda::hopper
