#pragma once

// The outputs of a head: the consumer warpgroups of the fused Hopper kernel. See hopper_kernel.cuh.

#include <cstdint>

#include "ops/ssd_forward/hopper_state.cuh"

namespace adder::cuda::hopper {

/// A warpgroup with the state and the outputs of one head. kExtras: there is a D of each channel,
/// or z.
template <typename T, int kSlices, bool kExtras>
class Head : public State<T, kSlices, true> {
  using Base = State<T, kSlices, true>;
  using L = Layout<kSlices, true>;

 public:
  __device__ Head(const Params& p, Shared<kSlices, true>& shared, int h) : Base(p, shared, h) {
    const int matrix = thread_ % 32 / 8;
    store_place_ = swizzled(16 * warp_ + matrix % 2 * 8 + thread_ % 8, matrix / 2);
  }

  __device__ void run() {
    if (!unit().exists) return release_all_bc();
    start_state();
    load_skip();
    const int nwarm = place().nwarm;
    const int nchunks = place().nchunks;
    for (int c = 0; c < nwarm; ++c) warm_chunk(c);
    store_state_tile(nwarm);
    fence_async_shared();
    for (int c = nwarm; c < nchunks; ++c) chunk(c, c == nwarm);
    sync_head();
    send_y(nchunks - 1);
    if (thread_ == 0) wait_stores<0>();
    if (place().is_cut_after) {
      save_cut();
    } else {
      save_final_state();
    }
  }

 private:
  using Base::add_to_state;
  using Base::column;
  using Base::decay_state;
  using Base::h_;
  using Base::lane;
  using Base::last_sum;
  using Base::load_weighted_x;
  using Base::load_x;
  using Base::p_;
  using Base::pin_state;
  using Base::place;
  using Base::release_all_bc;
  using Base::release_bc;
  using Base::release_x;
  using Base::row;
  using Base::S_;
  using Base::save_cut;
  using Base::save_final_state;
  using Base::shared_;
  using Base::stage_of;
  using Base::start_state;
  using Base::sync_head;
  using Base::thread_;
  using Base::unit;
  using Base::wait_bc;
  using Base::wait_x;
  using Base::warm_chunk;
  using Base::warp_;
  using Base::weigh_x;

  // ---- products ----

  __device__ std::uint32_t state_tile(int c) const {
    return to_shared(shared_.states[renewed(h_)][c % L::kStateTiles]);
  }

  __device__ std::uint64_t C_tile(int c) const {
    return describe_tile(to_shared(shared_.bc[stage_of(c)]) + kSlices * kTileBytes);
  }

  /// d = C · tileᵀ with both operands in shared memory.
  __device__ void multiply_C(float (&d)[32], int c, std::uint64_t tile) const {
    const std::uint64_t C = C_tile(c);
#pragma unroll
    for (int k = 0; k < 4 * kSlices; ++k) {
      const std::uint64_t at = tile_offset(k / 4 * kTileBytes + k % 4 * 32);
      multiply_64x64x16<T, Operand::k_contiguous>(d, C + at, tile + at, k > 0);
    }
  }

  /// Begins scores = C Bᵀ.
  __device__ void begin_scores(float (&scores)[32], int c) const {
    pin(scores);
    begin_products();
    multiply_C(scores, c, describe_tile(to_shared(shared_.bc[stage_of(c)])));
    commit_products();
  }

  /// Begins y = C Sᵀ.
  __device__ void begin_state_outputs(float (&y)[32], int c) const {
    pin(y);
    begin_products();
    multiply_C(y, c, describe_tile(state_tile(c)));
    commit_products();
  }

  /// Begins y += operand · x.
  __device__ void begin_score_outputs(float (&y)[32], const std::uint32_t (&operand)[4][4],
                                      int c) const {
    const std::uint64_t x = describe_tile(to_shared(shared_.x[stage_of(c)][renewed(h_)]));
    pin(y);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply_64x64x16<T, Operand::n_contiguous>(y, operand[k], x + tile_offset(2048 * k), true);
    }
    commit_products();
  }

  __device__ static void settle(float (&y)[32]) {
    wait_products<0>();
    pin(y);
  }

  // ---- one chunk ----

  __device__ void chunk(int c, bool is_first) {
    if constexpr (!L::kOwnY) {
      products_at_once(c, is_first);
    } else {
      products_in_turn(c, is_first);
    }
  }

  /// For small states, whose heads are many: in few registers, most products one after another.
  __device__ void products_in_turn(int c, bool is_first) {
    std::uint32_t weights[4][4];
    {
      float scores[32];
      std::uint32_t x[4][4];
      wait_x(c);
      const float last = last_sum(c);
      load_weighted_x(x, c, last);
      decay_state(exp2_approx(last));
      wait_bc(c);
      sync_head();  // the tiles of the state and of the last y are stored
      if (!is_first) send_y(c - 1);
      begin_scores(scores, c);
      add_to_state(x, c);
      settle(scores);
      pin_state();
      pin(x);
      weigh_scores(weights, scores, c);
    }
    float y[32];
    begin_state_outputs(y, c);
    if constexpr (L::kStateTiles == 2) store_state_tile(c + 1);
    settle(y);
    release_bc(c);
    decay_rows(y, c);
    begin_score_outputs(y, weights, c);
    if constexpr (L::kStateTiles == 1) {
      sync_head();  // everyone is done with the state's tile
      store_state_tile(c + 1);
    }
    settle(y);
    pin(weights);
    if constexpr (kExtras) finish_y(y, c);
    if (!is_first) {
      if (thread_ == 0) {
        wait_stores_read<0>();
        arrive(&shared_.y_free[h_]);
      }
      wait(&shared_.y_free[h_], y_parity_);
      y_parity_ ^= 1;
    }
    store_y_tile(y, c);
    fence_async_shared();
    release_x(c);
  }

  /// For large states, which leave registers to few heads anyway. y takes the place of x in shared
  /// memory.
  __device__ void products_at_once(int c, bool is_first) {
    std::uint32_t x[4][4];
    std::uint32_t weights[4][4];
    float y[32];
    wait_bc(c);
    sync_head();  // the tiles of the state and of the last y are stored
    if (!is_first) send_y(c - 1);
    {
      float scores[32];
      wait_x(c);
      begin_scores(scores, c);
      begin_state_outputs(y, c);
      if (!is_first && thread_ == 0) {
        wait_stores_read<0>();
        arrive(&shared_.x_empty[stage_of(c - 1)][h_]);
      }
      wait_products<1>();
      pin(scores);
      weigh_scores(weights, scores, c);
      wait_products<0>();
      pin(y);
    }
    decay_rows(y, c);
    load_x(x, c);
    begin_score_outputs(y, weights, c);
    const float last = last_sum(c);
    decay_state(exp2_approx(last));
    weigh_x(x, c, last);
    add_to_state(x, c);
    wait_products<1>();
    pin(y);
    pin(weights);
    if constexpr (kExtras) finish_y(y, c);
    sync_head();  // everyone is done with x, and with the state's tile
    if (lane() == 0 && thread_ != 0) arrive(&shared_.x_empty[stage_of(c)][h_]);
    store_y_tile(y, c);
    wait_products<0>();
    pin_state();
    pin(x);
    release_bc(c);
    store_state_tile(c + 1);
    fence_async_shared();
  }

  /// The state's part of y, 2^s_i S C.
  __device__ void decay_rows(float (&y)[32], int c) const {
    const float decay0 = exp2_approx(shared_.sums[stage_of(c)][h_][row()]);
    const float decay1 = exp2_approx(shared_.sums[stage_of(c)][h_][row() + 8]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      y[4 * j] *= decay0;
      y[4 * j + 1] *= decay0;
      y[4 * j + 2] *= decay1;
      y[4 * j + 3] *= decay1;
    }
  }

  // ---- the decayed scores ----

  /// scores ∘ 2^(s_i − t_j) for j <= i, else zero, with D on the diagonal: operand A of the product
  /// with x. A warp has 16 rows, so of its four squares of 16 × 16 those left of the diagonal are
  /// whole.
  __device__ void weigh_scores(std::uint32_t (&weights)[4][4], const float (&scores)[32],
                               int c) const {
    const float* s = shared_.sums[stage_of(c)][h_];
    const float s0 = s[row()];
    const float s1 = s[row() + 8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* w = scores + 8 * k;
      if (k < warp_) {
        // Between a row and a column lies b, the last column of the square: 2^(s_i − s_b) 2^(s_b −
        // t_j), of which the second is at hand.
        const float b = s[16 * k + 15];
        const float row0 = exp2_approx(s0 - b);
        const float row1 = exp2_approx(s1 - b);
        const float2 near = column_decays(c, 16 * k, b);
        const float2 far = column_decays(c, 16 * k + 8, b);
        weights[k][0] = pack<T>(w[0] * (near.x * row0), w[1] * (near.y * row0));
        weights[k][1] = pack<T>(w[2] * (near.x * row1), w[3] * (near.y * row1));
        weights[k][2] = pack<T>(w[4] * (far.x * row0), w[5] * (far.y * row0));
        weights[k][3] = pack<T>(w[6] * (far.x * row1), w[7] * (far.y * row1));
      } else if (k == warp_) {
        weigh_diagonal(weights[k], w, shared_.offsets[stage_of(c)][h_] + column() + 16 * k, s0, s1);
      } else {
        for (int i = 0; i < 4; ++i) weights[k][i] = 0;
      }
      pin(weights[k]);  // one square after another: the loads for all would take registers
    }
  }

  /// 2^(s_b − t) of two tokens.
  __device__ float2 column_decays(int c, int token, float b) const {
    if constexpr (L::kStoreColumns) {
      return *reinterpret_cast<const float2*>(shared_.columns[stage_of(c)][h_] + token + column());
    } else {
      const float2 t =
          *reinterpret_cast<const float2*>(shared_.offsets[stage_of(c)][h_] + token + column());
      return {exp2_approx(b - t.x), exp2_approx(b - t.y)};
    }
  }

  /// The square on the diagonal. The thread has its rows r and r + 8, columns q, q + 1 and eight
  /// more.
  __device__ void weigh_diagonal(std::uint32_t (&out)[4], const float* w, const float* t, float s0,
                                 float s1) const {
    const float2 near = *reinterpret_cast<const float2*>(t);
    const float2 far = *reinterpret_cast<const float2*>(t + 8);
    const int above = column() - lane() / 4;  // q − r
    const float D = kExtras && p_.D_per_channel ? 0.0F : shared_.skip[h_][0];
    const float skip_even = above == 0 ? D : 0.0F;
    const float skip_odd = above == -1 ? D : 0.0F;
    const bool even = above <= 0;
    const bool odd = above <= -1;
    const float near00 = even ? w[0] * exp2_approx(s0 - near.x) : 0.0F;
    const float near01 = odd ? w[1] * exp2_approx(s0 - near.y) : 0.0F;
    const float near10 = w[2] * exp2_approx(s1 - near.x);
    const float near11 = w[3] * exp2_approx(s1 - near.y);
    const float far10 = even ? w[6] * exp2_approx(s1 - far.x) : 0.0F;
    const float far11 = odd ? w[7] * exp2_approx(s1 - far.y) : 0.0F;
    out[0] = pack<T>(near00 + skip_even, near01 + skip_odd);
    out[1] = pack<T>(near10, near11);
    out[2] = 0;
    out[3] = pack<T>(far10 + skip_even, far11 + skip_odd);
  }

  // ---- tiles to shared memory ----

  /// A fragment of 64 × 64, rounded, to a tile [row][64].
  __device__ void store_tile(std::uint32_t tile, const float (&d)[32]) const {
    tile += store_place_;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrices(tile ^ (16 * j), pack<T>(d[4 * j], d[4 * j + 1]),
                     pack<T>(d[4 * j + 2], d[4 * j + 3]), pack<T>(d[4 * j + 4], d[4 * j + 5]),
                     pack<T>(d[4 * j + 6], d[4 * j + 7]));
    }
  }

  /// The state in 16 bits, [channel][64 n] a slice, for the products of chunk c with C.
  __device__ void store_state_tile(int c) const {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) store_tile(state_tile(c) + s * kTileBytes, S_[s]);
  }

  __device__ unsigned char* y_tile(int c) const {
    return L::kOwnY ? shared_.y[h_] : shared_.x[stage_of(c)][h_];
  }
  __device__ void store_y_tile(const float (&y)[32], int c) const {
    store_tile(to_shared(y_tile(c)), y);
  }

  __device__ void send_y(int c) const {
    if (thread_ != 0) return;
    const Unit u = unit();
    const Box box{u.channel, u.head, place().first_token + c * kChunk, place().batch};
    if (p_.add_to_y) {
      wait_for_previous_kernel();  // the pass before has written what is added to
      add_box(p_.y, y_tile(c), box);
    } else {
      store_box(p_.y, y_tile(c), box);
    }
    commit_stores();
  }

  // ---- what few calls ask for ----

  /// D for all chunks: of the head, to be added to the diagonal of the scores; or of its channels.
  __device__ void load_skip() {
    if (thread_ == 0) shared_.skip[h_][0] = 0.0F;
    if (p_.D == nullptr) return;
    const Unit u = unit();
    if (!p_.D_per_channel) {
      if (thread_ == 0) shared_.skip[h_][0] = p_.D[u.head];
      return;
    }
    const int channel = u.channel + thread_;
    if (thread_ < kColumns) {
      shared_.skip[h_][thread_] = channel < p_.headdim ? p_.D[u.head * p_.headdim + channel] : 0.0F;
    }
  }

  __device__ void finish_y(float (&y)[32], int c) const {
    if (p_.D_per_channel) add_skip(y, c);
    if (p_.z != nullptr) gate(y, place().first_token + c * kChunk);
  }

  /// y += D x for a D of each channel; a D of the head is on the diagonal of the scores.
  __device__ void add_skip(float (&y)[32], int c) const {
    const std::uint32_t tile = to_shared(shared_.x[stage_of(c)][h_]);
    const float* skip = shared_.skip[h_];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 D = *reinterpret_cast<const float2*>(skip + 8 * j + column());
      const float2 near = unpack<T>(load_shared(tile + swizzled(row(), j) + 2 * column()));
      const float2 far = unpack<T>(load_shared(tile + swizzled(row() + 8, j) + 2 * column()));
      y[4 * j] += D.x * near.x;
      y[4 * j + 1] += D.y * near.y;
      y[4 * j + 2] += D.x * far.x;
      y[4 * j + 3] += D.y * far.y;
    }
  }

  /// y silu(z).
  __device__ void gate(float (&y)[32], int token) const {
    const Unit u = unit();
    const T* first = static_cast<const T*>(p_.z) + place().batch * p_.z_strides.batch +
                     u.head * p_.z_strides.head + u.channel + column();
    const int channels = p_.headdim - u.channel - column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = token + row() + 8 * half;
      if (t >= place().end_token) continue;
      const T* row = first + t * p_.z_strides.token;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (8 * j < channels) y[4 * j + 2 * half] *= silu<T>(static_cast<float>(row[8 * j]));
        if (8 * j + 1 < channels) {
          y[4 * j + 2 * half + 1] *= silu<T>(static_cast<float>(row[8 * j + 1]));
        }
      }
    }
  }

  std::uint32_t y_parity_ = 0;
  std::uint32_t store_place_;  // in a tile, of the thread's rows, as stmatrix wants them
};

}  // namespace adder::cuda::hopper
