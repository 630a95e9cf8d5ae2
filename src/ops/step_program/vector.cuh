#pragma once

// v, which a projection multiplies: from what comes before it, into shared memory.
//
// The matrix unit multiplies bf16: v, in float32, is taken apart into numbers of 8 bits each whose
// products it sums in float32, which costs nothing, since the unit takes 8 rows at a time anyway.
// Part p of sequence s is row p · kBatch + s. The scale of a norm is the same for all of v and is
// left to the results, so that the product does not wait for it.

#include "cuda/rows.cuh"
#include "ops/step_program/exchange.cuh"
#include "ops/step_program/grid.cuh"

namespace adder::cuda::program {

template <typename X, int kBatch>
struct Shape {
  static constexpr int kRows = kParts<X> * kBatch;  // of v
  static constexpr int kSequenceThreads = kThreads / kBatch;
  static constexpr int kSequenceWarps = kWarps / kBatch;
  static constexpr int kHalves = (kRows + 7) / 8;  // a matrix instruction takes 8 rows
  static constexpr int kTileSlots = slots_of_tile(kRows);
  /// The sums of a tile: of a single sequence those of all warps side by side, to be read at once;
  /// of more, whose writing would meet the same banks, warp by warp.
  __device__ static constexpr int slot(int row_of_v, int row, int warp) {
    return kBatch == 1 ? (row_of_v * kTileRows + row) * kWarps + warp
                       : (warp * kRows + row_of_v) * kTileRows + row;
  }
  static_assert(kHalves <= 2);
};

/// What is known of a channel of a mixer's heads before B, C and dt; then y, in place of x.
struct alignas(16) Channel {
  float x, Dx;
  int head;
};

struct Shared {
  float* sums;        ///< a warp's part of the sum of squares
  Channel* channels;  ///< kMostChannels
  float* slots;       ///< of tiles, see Shape
  char* v;
  int v_row;
  int round_tiles;  ///< tiles that there are slots for
};

template <typename X, int kBatch, bool kLinked>
class Maker {
  using S = Shape<X, kBatch>;
  static constexpr int kNext = 4 * S::kSequenceThreads;

 public:
  /// `from`: what the instruction before gives. `residual`: the block's own.
  __device__ Maker(const Linear<X>& p, const Shared& shared, const Exchange<X>& from,
                   float* residual)
      : p_(p),
        shared_(shared),
        from_(from),
        residual_(residual),
        s_(static_cast<int>(threadIdx.x) / S::kSequenceThreads),
        index_(4 * (static_cast<int>(threadIdx.x) % S::kSequenceThreads)) {}

  /// What it returns is to be given to `put_sum` by all, some time before `scale_of`.
  __device__ float run() const {
    float sum = 0;
    if (p_.before == Before::grouped_norm || p_.before == Before::norm_gate) {
      run_groups(p_, shared_, from_);
    } else if (s_ < p_.batch) {
      // As many loads of each tensor under way as rows of models need: each round of them takes as
      // long as the first.
      if (p_.before == Before::norm) {
        sum = p_.in <= kNext ? run_norm<1>() : run_norm<3>();
      } else {
        sum = p_.in <= 2 * kNext ? run_gate<2>() : run_gate<3>();
      }
    }
    sync_threads();
    return sum;
  }

  __device__ void put_sum(float sum) const {
    sum = warp_sum(sum);
    if (lane_index() == 0) shared_.sums[warp_index()] = sum;
  }

  /// What sums of products are to be multiplied with.
  __device__ float scale_of(int sequence) const { return p_.is_scaled ? scale(sequence) : 1.0F; }

  /// The norm's output, by one block, once its scale is known.
  __device__ void store_norm() const {
    if (s_ >= p_.batch) return;
    const float by = scale_of(s_);
    for (int i = index_; i < p_.in; i += kNext) {
      float a[4];
      if (keeps_residual()) {
        load_floats(residual_ + s_ * p_.in + i, true, a);  // with x
      } else {
        load_floats(p_.residual.data + s_ * p_.residual.row + i, true, a);
      }
      if (!keeps_residual() && p_.x.data != nullptr) {
        float b[4];
        to_floats(load<4>(p_.x.data + s_ * p_.x.row + i), b);
#pragma unroll
        for (int k = 0; k < 4; ++k) a[k] += b[k];
      }
      apply_scale(a, by, p_.norm_weight == nullptr ? nullptr : p_.norm_weight + i);
      store(p_.norm_y.data + s_ * p_.norm_y.row + i, from_floats<X, 4>(a));
    }
  }

 private:
  __device__ bool takes() const { return kLinked && p_.takes; }
  __device__ bool keeps_residual() const { return kLinked && p_.keeps_residual; }

  __device__ float scale(int sequence) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < S::kSequenceWarps; ++i) {
      sum += shared_.sums[sequence * S::kSequenceWarps + i];
    }
    return rsqrtf(fmaf(sum, p_.inverse_size, p_.epsilon));
  }

  __device__ static void gate(float (&v)[4], const float (&z)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] *= silu<X>(z[k]);
  }

  // Four numbers from column i on.
  __device__ void store_parts(int i, float (&v)[4]) const {
    char* to = shared_.v + s_ * shared_.v_row + 2 * i;
#pragma unroll
    for (int part = 0; part < kParts<X>; ++part) {
      const Pack<bf16, 4> rounded = from_floats<bf16, 4>(v);
      store(reinterpret_cast<bf16*>(to + part * kBatch * shared_.v_row), rounded);
      if (part + 1 == kParts<X>) break;
      float taken[4];
      to_floats(rounded, taken);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] -= taken[k];
    }
  }

  // Threads without columns of their own look at the last ones, and do not count.
  __device__ int clamped(int i) const { return min(i, p_.in - 4); }

  template <int kTogether>
  __device__ __forceinline__ void load_weight(int first, float (&w)[kTogether][4]) const {
#pragma unroll
    for (int n = 0; n < kTogether; ++n) w[n][0] = w[n][1] = w[n][2] = w[n][3] = 1.0F;
    if (p_.norm_weight == nullptr) return;
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      load_floats(p_.norm_weight + clamped(first + n * kNext), true, w[n]);
    }
  }

  // Of all columns: v · weight, and the sum of squares.
  template <int kTogether>
  __device__ __forceinline__ void weigh(int first, float (&v)[kTogether][4],
                                        const float (&w)[kTogether][4], float& sum) const {
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int i = first + n * kNext;
      if (i >= p_.in) break;
      sum = add_squares(sum, v[n]);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[n][k] *= w[n][k];
      store_parts(i, v[n]);
    }
  }

  // x, once it is there.
  template <int kTogether>
  __device__ __forceinline__ void load_x(int first, float (&x)[kTogether][4]) const {
    if (!takes()) {
      const X* from = p_.x.data + s_ * p_.x.row;
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        to_floats(load<4>(from + clamped(first + n * kNext)), x[n]);
      }
      return;
    }
    bool all = false;
    do {
      all = true;
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        all = from_.take(s_ * p_.in + clamped(first + n * kNext), x[n]) && all;
      }
    } while (!all);
  }

  // residual + x
  template <int kTogether>
  __device__ __forceinline__ float run_norm() const {
    float* own = residual_ + s_ * p_.in;
    const float* residual =
        kLinked && p_.takes_residual ? own : p_.residual.data + s_ * p_.residual.row;
    const bool has_x = p_.x.data != nullptr;
    const bool writes = p_.new_residual.data != nullptr && blockIdx.x == 0;
    float sum = 0;
#pragma unroll 1
    for (int first = index_; first < p_.in; first += kTogether * kNext) {
      float v[kTogether][4];
      float a[kTogether][4] = {};
      float w[kTogether][4];
      load_weight(first, w);
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int i = clamped(first + n * kNext);
        load_floats(residual + i, true, v[n]);
      }
      if (has_x) load_x(first, a);
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) v[n][k] += a[n][k];
      }
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int i = first + n * kNext;
        if (i >= p_.in) break;
        if (keeps_residual()) store_floats(own + i, v[n]);
        if (writes) store_floats(p_.new_residual.data + s_ * p_.new_residual.row + i, v[n]);
      }
      weigh(first, v, w, sum);
    }
    return sum;
  }

  // x, or x · silu(z)
  template <int kTogether>
  __device__ __forceinline__ float run_gate() const {
    const X* z = p_.z.data + s_ * p_.z.row;
    const bool has_z = p_.z.data != nullptr && !takes();
    float sum = 0;
#pragma unroll 1
    for (int first = index_; first < p_.in; first += kTogether * kNext) {
      float v[kTogether][4];
      float a[kTogether][4];
      float w[kTogether][4];
      load_weight(first, w);
      if (has_z) {
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          to_floats(load<4>(z + clamped(first + n * kNext)), a[n]);
        }
      }
      load_x(first, v);
      if (has_z) {
#pragma unroll
        for (int n = 0; n < kTogether; ++n) gate(v[n], a[n]);
      }
      weigh(first, v, w, sum);
    }
    return sum;
  }

  // Norms of groups, which are part of v. Out of the way of the rest, which has no time for it.
  __device__ __noinline__ static void run_groups(const Linear<X>& p, const Shared shared,
                                                 const Exchange<X> from) {
    Maker(p, shared, from, nullptr).run_groups();
  }
  __device__ __forceinline__ void run_groups() const {
    const bool exists = s_ < p_.batch;
    for (int begin = 0; begin < p_.in; begin += p_.group_size) {
      const int end = begin + p_.group_size;
      float sum = 0;
      for (int i = begin + index_; exists && i < end; i += kNext) {
        float v[4];
        load_gated(i, v, p_.before == Before::grouped_norm);
        sum = add_squares(sum, v);
      }
      put_sum(sum);
      sync_threads();
      const float by = exists ? scale(s_) : 0.0F;
      sync_threads();
      for (int i = begin + index_; exists && i < end; i += kNext) {
        float v[4];
        load_gated(i, v, true);
        apply_scale(v, by, p_.norm_weight == nullptr ? nullptr : p_.norm_weight + i);
        store_parts(i, v);
      }
    }
  }
  __device__ void load_gated(int i, float (&v)[4], bool with_gate) const {
    to_floats(load<4>(p_.x.data + s_ * p_.x.row + i), v);
    if (!with_gate) return;
    float z[4];
    to_floats(load<4>(p_.z.data + s_ * p_.z.row + i), z);
    gate(v, z);
  }

  const Linear<X>& p_;
  const Shared shared_;
  const Exchange<X> from_;
  float* residual_;
  int s_, index_;
};

}  // namespace adder::cuda::program
