#pragma once

// The outputs of a head: the consumer warpgroups of the fused Hopper kernel. See hopper_kernel.cuh.

#include <cstdint>

#include "ops/ssd_forward/hopper_state.cuh"

namespace adder::cuda::hopper {

/// A warpgroup with the state and the outputs of one head.
template <typename T, int kSlices>
class Head : public State<T, kSlices, true> {
  using Base = State<T, kSlices, true>;
  using L = Layout<kSlices, true>;
  using XOperand = typename Base::XOperand;

 public:
  using Base::Base;

  __device__ void run() {
    if (!unit_.exists) return release_all_bc();
    start_state();
    load_skip();
    store_state_tile(0);
    fence_async_shared();
    sync_head();
    if constexpr (L::kOverlap) {
      walk_overlapped();
    } else {
      walk();
    }
    if (thread_ == 0) wait_stores<0>();
    save_final_state();
  }

 private:
  using Base::add_to_state;
  using Base::bc_;
  using Base::column_;
  using Base::decay_state;
  using Base::h_;
  using Base::lane_;
  using Base::load_x;
  using Base::load_x_step;
  using Base::p_;
  using Base::pin_state;
  using Base::place_;
  using Base::release_all_bc;
  using Base::release_bc;
  using Base::row_;
  using Base::save_final_state;
  using Base::shared_;
  using Base::start_state;
  using Base::state_tile;
  using Base::store_state_tile;
  using Base::sync_head;
  using Base::thread_;
  using Base::unit_;
  using Base::warp_;
  using Base::weigh_step;
  using Base::weigh_x;
  using Base::x_weights;
  using Base::xs_;

  /// Begins scores = C Bᵀ and y = C Sᵀ with all operands in shared memory.
  __device__ void begin_C(float (&scores)[32], float (&y)[32], int state) const {
    const std::uint64_t B = describe_tile(to_shared(shared_.bc[bc_.index]));
    const std::uint64_t C = B + tile_offset(kSlices * kTileBytes);
    const std::uint64_t S = describe_tile(state_tile(state, 0));
    pin(scores);
    pin(y);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4 * kSlices; ++k) {
      const std::uint64_t at = tile_offset(k / 4 * kTileBytes + k % 4 * 32);
      multiply_64x64x16<T, Operand::k_contiguous>(scores, C + at, B + at, k > 0);
      multiply_64x64x16<T, Operand::k_contiguous>(y, C + at, S + at, k > 0);
    }
    commit_products();
  }

  /// What the thread's scores are multiplied by: 2^(s_i − t_j) for j <= i, else zero.
  struct Decays {
    float of[32];
    float row0, row1;  // 2^s_i
  };

  __device__ void load_offsets(float2 (&near)[4], float2 (&far)[4]) const {
    const float* offsets = shared_.offsets[xs_.index][h_];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      near[k] = *reinterpret_cast<const float2*>(offsets + 16 * k + column_);
      far[k] = *reinterpret_cast<const float2*>(offsets + 16 * k + 8 + column_);
    }
  }

  __device__ void decays_of(Decays& decays, const float2 (&near)[4], const float2 (&far)[4],
                            float s0, float s1) const {
    decays.row0 = exp2_approx(s0);
    decays.row1 = exp2_approx(s1);
#pragma unroll
    for (int k = 0; k < 4; ++k) decays_of_step(decays.of + 8 * k, k, near[k], far[k], s0, s1);
  }

  /// The eight decays of a step of k, which is 16 tokens.
  __device__ void decays_of_step(float* out, int k, const float2& near, const float2& far, float s0,
                                 float s1) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = 0.0F;
    if (k > warp_) return;  // above the diagonal
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 t = half == 0 ? near : far;
      out[4 * half] = exp2_approx(s0 - t.x);
      out[4 * half + 1] = exp2_approx(s0 - t.y);
      out[4 * half + 2] = exp2_approx(s1 - t.x);
      out[4 * half + 3] = exp2_approx(s1 - t.y);
      if (k == warp_) {
        const int column = 16 * k + 8 * half + column_;
        if (column > row_) out[4 * half] = 0.0F;
        if (column + 1 > row_) out[4 * half + 1] = 0.0F;
        if (column > row_ + 8) out[4 * half + 2] = 0.0F;
        if (column + 1 > row_ + 8) out[4 * half + 3] = 0.0F;
      }
    }
  }

  /// A step of operand A of the product with x: the scores, decayed, with D on the diagonal.
  __device__ void decay_step(std::uint32_t (&operand)[4], int k, const float* scores,
                             const float* decays) const {
    const float even = k == warp_ ? D_even_ : 0.0F;
    const float odd = k == warp_ ? D_odd_ : 0.0F;
    operand[0] = pack<T>(scores[0] * decays[0] + even, scores[1] * decays[1] + odd);
    operand[1] = pack<T>(scores[2] * decays[2], scores[3] * decays[3]);
    operand[2] = pack<T>(scores[4] * decays[4], scores[5] * decays[5]);
    operand[3] = pack<T>(scores[6] * decays[6] + even, scores[7] * decays[7] + odd);
  }

  /// The state's part of y, 2^s_i S C.
  __device__ static void decay_rows(float (&y)[32], float decay0, float decay1) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      y[4 * j] *= decay0;
      y[4 * j + 1] *= decay0;
      y[4 * j + 2] *= decay1;
      y[4 * j + 3] *= decay1;
    }
  }

  /// y += operand · x.
  __device__ void multiply_x(float (&y)[32], const std::uint32_t (&operand)[4][4]) const {
    const std::uint64_t x = describe_tile(to_shared(shared_.x[xs_.index][h_]));
    pin(y);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply_64x64x16<T, Operand::n_contiguous>(y, operand[k], x + tile_offset(2048 * k), true);
    }
    commit_products();
  }

  /// What a chunk needs of x, dt and A, from shared memory.
  struct Chunk {
    XOperand x;
    float2 near[4], far[4];  // t
    float last, s0, s1;
  };

  __device__ void load_chunk(Chunk& chunk) const {
    const float* sums = shared_.sums[xs_.index][h_];
    chunk.last = sums[kChunk - 1];
    chunk.s0 = sums[row_];
    chunk.s1 = sums[row_ + 8];
    load_x(chunk.x, chunk.last);
    load_offsets(chunk.near, chunk.far);
  }

  /// For states that leave registers free. Three groups of products a chunk: those with C, that of
  /// the state, that with x. The decays are computed while the first two run; while the third runs,
  /// the new state is stored and the next chunk loaded. No product is in flight from one pass of
  /// the loop to the next; the compiler would wait for it.
  __device__ void walk_overlapped() {
    Chunk chunk;
    wait(&shared_.x_full[xs_.index][h_], xs_.parity);
    load_chunk(chunk);
    overlapped_chunk<true>(0, chunk);
    for (int c = 1; c < place_.nchunks; ++c) overlapped_chunk<false>(c, chunk);
    sync_head();
    send_y(place_.nchunks - 1, shared_.y[h_][place_.nchunks % 2]);
  }

  template <bool kFirst>
  __device__ void overlapped_chunk(int c, Chunk& chunk) {
    float scores[32];
    float y[32];
    Decays decays;
    std::uint32_t weights[4][4];
    wait(&shared_.bc_full[bc_.index], bc_.parity);
    sync_head();  // the tiles of the state and of the last y are stored
    begin_C(scores, y, c % 2);
    if constexpr (!kFirst) send_y(c - 1, shared_.y[h_][c % 2]);
    std::uint32_t weighted_x[4][4];
    weigh_x(weighted_x, chunk.x);
    decay_state(exp2_approx(chunk.last));
    add_to_state(weighted_x);
    decays_of(decays, chunk.near, chunk.far, chunk.s0, chunk.s1);
    wait_products<1>();
    pin(scores);
    pin(y);
#pragma unroll
    for (int k = 0; k < 4; ++k) decay_step(weights[k], k, scores + 8 * k, decays.of + 8 * k);
    pin(weights);
    decay_rows(y, decays.row0, decays.row1);
    multiply_x(y, weights);
    const RingPosition current = xs_;
    xs_.advance(L::kXStages);
    wait_products<1>();
    pin_state();
    pin(weighted_x);
    release_bc();
    store_state_tile((c + 1) % 2);
    if (c + 1 < place_.nchunks) wait(&shared_.x_full[xs_.index][h_], xs_.parity);
    load_chunk(chunk);  // after the last chunk without a meaning
    if constexpr (!kFirst) {
      if (thread_ == 0) wait_stores_read<0>();  // of the last y: its tile is the next one's
    }
    wait_products<0>();
    pin(y);
    pin(weights);
    if (p_.D_per_channel) add_skip(y, current.index);
    adjust_y(place_.first_token + c * kChunk, y);
    store_y_tile(y, shared_.y[h_][(c + 1) % 2]);
    fence_async_shared();
    arrive(&shared_.x_empty[current.index][h_]);
  }

  /// The decays and what they apply to, step by step.
  __device__ void weigh_scores(std::uint32_t (&weights)[4][4], const float (&scores)[32],
                               float (&y)[32]) const {
    const float* sums = shared_.sums[xs_.index][h_];
    const float* offsets = shared_.offsets[xs_.index][h_];
    const float s0 = sums[row_];
    const float s1 = sums[row_ + 8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float decays[8];
      decays_of_step(decays, k, *reinterpret_cast<const float2*>(offsets + 16 * k + column_),
                     *reinterpret_cast<const float2*>(offsets + 16 * k + 8 + column_), s0, s1);
      decay_step(weights[k], k, scores + 8 * k, decays);
    }
    pin(weights);
    decay_rows(y, exp2_approx(s0), exp2_approx(s1));
  }

  /// For large states: one product after another.
  __device__ void walk() {
    for (int c = 0; c < place_.nchunks; ++c) {
      float scores[32];
      float y[32];
      wait(&shared_.bc_full[bc_.index], bc_.parity);
      begin_C(scores, y, 0);
      wait(&shared_.x_full[xs_.index][h_], xs_.parity);
      wait_products<0>();
      pin(scores);
      pin(y);
      if (c > 0) release_previous_x();
      std::uint32_t weights[4][4];
      weigh_scores(weights, scores, y);
      if (p_.D_per_channel) add_skip(y, xs_.index);
      std::uint32_t x[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) load_x_step(x[k], k);
      multiply_x(y, weights);
      const float last = shared_.sums[xs_.index][h_][kChunk - 1];
      decay_state(exp2_approx(last));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        weigh_step(x[k], x_weights(16 * k + column_, last), x_weights(16 * k + 8 + column_, last));
      }
      pin(x);
      add_to_state(x);
      wait_products<1>();
      pin(y);
      adjust_y(place_.first_token + c * kChunk, y);
      sync_head();  // everyone's products with the state and x are done
      store_y_tile(y, shared_.x[xs_.index][h_]);
      wait_products<0>();
      pin_state();
      release_bc();
      store_state_tile(0);
      fence_async_shared();
      sync_head();
      send_y(c, shared_.x[xs_.index][h_]);
      previous_ = xs_.index;
      xs_.advance(L::kXStages);
    }
  }

  /// y += D x for a D of each channel; a D of the head is on the diagonal of the scores.
  __device__ void add_skip(float (&y)[32], int stage) const {
    const std::uint32_t tile = to_shared(shared_.x[stage][h_]);
    const float* skip = shared_.skip[h_];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 D = *reinterpret_cast<const float2*>(skip + 8 * j + column_);
      const float2 near = unpack<T>(load_shared(tile + swizzled(row_, j) + 2 * column_));
      const float2 far = unpack<T>(load_shared(tile + swizzled(row_ + 8, j) + 2 * column_));
      y[4 * j] += D.x * near.x;
      y[4 * j + 1] += D.y * near.y;
      y[4 * j + 2] += D.x * far.x;
      y[4 * j + 3] += D.y * far.y;
    }
  }

  // ---- outputs ----

  // With large states y takes the place of x in shared memory; else it has tiles of its own.

  /// The tile of x whose place y took: free once the copy engine has read y.
  __device__ void release_previous_x() const {
    if (thread_ == 0) {
      wait_stores_read<0>();
      arrive(&shared_.x_empty[previous_][h_]);
    }
  }

  __device__ void store_y_tile(const float (&y)[32], unsigned char* to) const {
    const std::uint32_t tile = to_shared(to);
    const int matrix = lane_ / 8;
    const int row = 16 * warp_ + matrix % 2 * 8 + lane_ % 8;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrices(tile + swizzled(row, j + matrix / 2), pack<T>(y[4 * j], y[4 * j + 1]),
                     pack<T>(y[4 * j + 2], y[4 * j + 3]), pack<T>(y[4 * j + 4], y[4 * j + 5]),
                     pack<T>(y[4 * j + 6], y[4 * j + 7]));
    }
  }

  __device__ void send_y(int c, const unsigned char* tile) const {
    if (thread_ == 0) {
      store_box(p_.y, tile,
                {unit_.channel, unit_.head, place_.first_token + c * kChunk, place_.batch});
      commit_stores();
    }
  }

  /// D for all chunks: of the head, to be added to the diagonal of the scores, of which a thread
  /// has the columns 2 (lane % 4) + {0, 1} in the rows lane / 4 + {0, 8} of its warp; or of its
  /// channels.
  __device__ void load_skip() {
    if (p_.D == nullptr) return;
    if (p_.D_per_channel) {
      const int channel = unit_.channel + thread_;
      if (thread_ < kColumns) {
        shared_.skip[h_][thread_] =
            channel < p_.headdim ? p_.D[unit_.head * p_.headdim + channel] : 0.0F;
      }
      return;
    }
    const float D = p_.D[unit_.head];
    D_even_ = column_ == lane_ / 4 ? D : 0.0F;
    D_odd_ = column_ + 1 == lane_ / 4 ? D : 0.0F;
  }

  /// Adds what an earlier call left in y, and gates.
  __device__ void adjust_y(int token, float (&y)[32]) const {
    if (p_.y_so_far != nullptr) {
      each_output(p_.y_so_far, p_.y_strides, token, y,
                  [](float y, float so_far) { return y + so_far; });
    }
    if (p_.z != nullptr) {
      each_output(p_.z, p_.z_strides, token, y, [](float y, float z) { return y * silu<T>(z); });
    }
  }

  /// y = update(y, the element of `tensor` at its place) for the thread's fragment.
  template <typename Update>
  __device__ void each_output(const void* tensor, const Strides& strides, int token, float (&y)[32],
                              Update&& update) const {
    const T* first = static_cast<const T*>(tensor) + place_.batch * strides.batch +
                     unit_.head * strides.head + unit_.channel + column_;
    const int channels = p_.headdim - unit_.channel - column_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = token + row_ + 8 * half;
      if (t >= place_.end_token) continue;
      const T* row = first + t * strides.token;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& even = y[4 * j + 2 * half];
        float& odd = y[4 * j + 2 * half + 1];
        if (8 * j < channels) even = update(even, static_cast<float>(row[8 * j]));
        if (8 * j + 1 < channels) odd = update(odd, static_cast<float>(row[8 * j + 1]));
      }
    }
  }

  int previous_ = 0;
  float D_even_ = 0.0F;
  float D_odd_ = 0.0F;
};

}  // namespace adder::cuda::hopper
