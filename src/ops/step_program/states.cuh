#pragma once

// Steps of states: those of Mamba-2's heads and Mamba-1's channels, see ssd_step and
// selective_scan_step. Every thread has the same part of the states each time and asks for the
// first of them before it waits for what they are updated with.

#include "cuda/vector.cuh"
#include "ops/chunk_cumsum/time_step.cuh"
#include "ops/selective_scan/cuda_math.cuh"
#include "ops/step_program/grid.cuh"

namespace adder::cuda::program {

// ---- Mamba-2 ------------------------------------------------------------------------------------

/// Eight lanes share a row, a warp has kWarpRows rows at a time. The code is one for all of them
/// and goes through nothing in a loop.
template <typename X>
class HeadRows {
  static constexpr int kLanes = kWarpSize / kWarpRows;
  static constexpr int kVectors = kMostColumns / (4 * kLanes);  // of a lane, four columns each

 public:
  __device__ explicit HeadRows(const Heads& p)
      : p_(p),
        row_((warp_index() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) *
                 kWarpRows +
             lane_index() / kLanes),
        column_(4 * (lane_index() % kLanes)) {
    load_state();
  }

  __device__ void run() {
    // All lanes of a warp take part in its sums.
#pragma unroll 1
    while (__any_sync(kFullWarp, row_ < p_.rows)) {
      step();
      row_ += kWarps * static_cast<int>(gridDim.x) * kWarpRows;
      load_state();
    }
  }

 private:
  __device__ bool has(int part) const { return column_ + 4 * kLanes * part < p_.dstate; }

  __device__ void load_state() {
    if (row_ >= p_.rows) return;
    const int unit = row_ / p_.headdim;
    channel_ = row_ - unit * p_.headdim;
    sequence_ = unit / p_.nheads;
    head_ = unit - sequence_ * p_.nheads;
    group_ = head_ / p_.heads_per_group;
    A_ = p_.A[head_];
    bias_ = p_.dt_bias == nullptr ? 0.0F : p_.dt_bias[head_];
    D_ = p_.D == nullptr ? 0.0F : p_.D[p_.D_has_headdim ? head_ * p_.headdim + channel_ : head_];
    from_ = p_.state + sequence_ * p_.state_sequence + head_ * p_.state_head +
            channel_ * p_.state_channel + column_;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (has(i)) load_floats(from_ + 4 * kLanes * i, true, state_[i]);
    }
  }

  template <typename T>
  __device__ const T* element(const Heads::Input& input, int column) const {
    return static_cast<const T*>(input.data) + sequence_ * input.row + column * input.column;
  }

  __device__ void step() {
    float y = 0;
    float x = 0;
    if (row_ < p_.rows) {
      const X* B = element<X>(p_.B, group_) + column_;
      const X* C = element<X>(p_.C, group_) + column_;
      float b[kVectors][4];
      float c[kVectors][4];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!has(i)) continue;
        to_floats(load<4>(B + 4 * kLanes * i), b[i]);
        to_floats(load<4>(C + 4 * kLanes * i), c[i]);
      }
      x = read(element<X>(p_.x, head_) + channel_);
      const float raw =
          p_.dt_is_float ? *element<float>(p_.dt, head_) : read(element<X>(p_.dt, head_));
      const float dt = time_step(raw + bias_, p_.dt_options);
      const float decay = expf(dt * A_);
      const float weight = dt * x;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!has(i)) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          state_[i][k] = decay * state_[i][k] + weight * b[i][k];
          y += state_[i][k] * c[i][k];
        }
        store_floats(from_ + 4 * kLanes * i, state_[i]);
      }
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      y += __shfl_xor_sync(kFullWarp, y, distance);
    }
    if (column_ != 0 || row_ >= p_.rows) return;
    if (p_.D != nullptr) y += D_ * x;
    if (p_.z.data != nullptr) y *= silu<X>(read(element<X>(p_.z, head_) + channel_));
    write(static_cast<X*>(p_.y) + sequence_ * p_.y_row + head_ * p_.y_column + channel_, y);
  }

  const Heads& p_;
  int row_, column_;
  int channel_, sequence_, head_, group_;
  float A_, bias_, D_;
  float* from_;
  float state_[kVectors][4];
};

template <typename X>
__device__ __forceinline__ void run_heads(const Heads& p, const Grid& grid, bool enters) {
  HeadRows<X> rows(p);
  if (enters) grid.enter();
  rows.run();
}

// ---- Mamba-1 ------------------------------------------------------------------------------------

/// kLanes threads share a channel, see selective_scan_step. The first four columns of each lane are
/// asked for ahead.
template <typename X>
__device__ __forceinline__ void run_channels(const Channels<X>& p, const Grid& grid, bool enters) {
  constexpr int kLanes = 4;
  constexpr int kColumns = 4 * kLanes;
  const int lane = lane_index() % kLanes;
  const int all = p.batch * p.d_inner;
  const int places = kThreads / kLanes * static_cast<int>(gridDim.x);
  // Those of a warp are adjacent; those of a block are spread, so that all blocks have some.
  int unit = (warp_index() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) *
                 (kWarpSize / kLanes) +
             lane_index() / kLanes;
  int sequence = 0;
  int channel = 0;
  float* state = nullptr;
  const float* rates = nullptr;
  float D = 0;
  float bias = 0;
  float h[4] = {};
  float a[4] = {};
  const auto load_first = [&] {
    if (unit >= all) return;
    sequence = unit / p.d_inner;
    channel = unit - sequence * p.d_inner;
    state = p.state.data + sequence * p.state.row + channel * p.state_channel;
    rates = p.A + channel * p.A_row;
    if (p.D != nullptr) D = p.D[channel];
    if (p.dt_bias != nullptr) bias = p.dt_bias[channel];
    if (4 * lane >= p.dstate) return;
    load_floats(state + 4 * lane, true, h);
    load_floats(rates + 4 * lane, true, a);
  };
  load_first();
  if (enters) grid.enter();
#pragma unroll 1
  for (; __any_sync(kFullWarp, unit < all); unit += places, load_first()) {
    const bool exists = unit < all;  // or takes part in the sums of its warp alone
    float y = 0;
    float x = 0;
    if (exists) {
      x = read(p.x.data + sequence * p.x.row + channel);
      const float v = read(p.dt.data + sequence * p.dt.row + channel) + bias;
      const float dt = p.dt_softplus ? scan_softplus<X>(v) : v;
      const float weight = dt * x;
      const int group = channel / p.group_size;
      const X* B = p.B.data + sequence * p.B.row + group * p.B_column;
      const X* C = p.C.data + sequence * p.C.row + group * p.C_column;
#pragma unroll 1
      for (int n = 4 * lane; n < p.dstate; n += kColumns) {
        if (n >= kColumns) {
          load_floats(state + n, true, h);
          load_floats(rates + n, true, a);
        }
        float b[4];
        float c[4];
        if (p.group_vectors) {
          to_floats(load<4>(B + n), b);
          to_floats(load<4>(C + n), c);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            b[i] = read(B + n + i);
            c[i] = read(C + n + i);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          h[i] = fmaf(scan_decay<X>(dt * scan_rate(a[i] * kLog2E)), h[i], weight * b[i]);
          y = fmaf(c[i], h[i], y);
        }
        store_floats(state + n, h);
      }
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      y += __shfl_xor_sync(kFullWarp, y, distance);
    }
    if (lane != 0 || !exists) continue;
    if (p.D != nullptr) y = fmaf(D, x, y);
    if (p.z.data != nullptr) y *= silu<X>(read(p.z.data + sequence * p.z.row + channel));
    write(p.y.data + sequence * p.y.row + channel, y);
  }
}

}  // namespace adder::cuda::program
