#pragma once

// Work per element: 2 · width flops and SiLU (two special functions), one read and one write. At
// bf16 that is 4 bytes for about 12 instructions, so device memory is the bound: on an H200 the
// special functions of 8 x 4,096 x 5,376 elements take 0.10 ms, the bytes 0.16 ms.
//
// Map: a warp takes 32 · V adjacent channels (V = 16 bytes' worth for each lane) through a run of
// tokens; warps know nothing of each other. A lane keeps the last width - 1 inputs of its channels
// and their weights in registers, and asks for each row of x kAhead rows before it needs it.
// Shared memory: none. Arithmetic: float32, the sum in the order bias, oldest tap, ..., newest tap,
// so that an element depends on its window alone.
//
// Which sequence a token belongs to and whether it is padding is the same for all lanes of a warp:
// they search cu_seqlens and seq_idx together. A run begins by reading the width - 1 rows before it
// once more, in the middle of a sequence together with its first rows: one latency instead of four.
//
// Registers at width 4, sm_90: 151 for 8 channels of bf16, 114 for 4 of float, 62 for single ones;
// no spills.

#include <cstdint>

#include "cuda/math.cuh"
#include "cuda/overlap.cuh"
#include "cuda/vector.cuh"
#include "ops/causal_conv1d/cuda_kernel.h"

namespace adder::cuda::conv {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
/// Thread blocks of a multiprocessor that the registers of a lane with V channels suffice for.
template <int V>
constexpr int kBlocks = V >= 8   ? 3
                        : V >= 4 ? 4
                                 : 7;
/// Rows of x that a lane has asked for at any time. At 16 bytes a row and 12 warps that is three
/// times what hides the latency of device memory.
template <int V>
constexpr int kAhead = V == 8 ? 6 : 4;

/// Tokens [begin, end) of sequence `index`. Whatever cu_seqlens holds, both are in [0, ntokens].
struct Sequence {
  std::int64_t index;
  std::int64_t begin;
  std::int64_t end;
};

/// Tokens up to `end` with the same entry of seq_idx.
struct Segment {
  std::int64_t end;
  std::int32_t index;
};

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }

/// The first lane for which `condition` holds, or -1.
__device__ __forceinline__ int first_lane(bool condition) {
  return __ffs(static_cast<int>(__ballot_sync(kFullWarp, condition))) - 1;
}

/// The sequence that token t belongs to: begin <= t < end.
template <typename T>
__device__ Sequence sequence_at(const Params<T>& p, std::int64_t t) {
  if (p.cu_seqlens == nullptr) return {0, 0, p.ntokens};
  const std::int32_t* ends = p.cu_seqlens + 1;
  // The first sequence that ends after t; the last one does in any case. Each round leaves one of
  // 32 parts.
  std::int64_t first = 0;
  std::int64_t count = p.nsequences;
  while (count > 1) {
    const std::int64_t part = (count + kWarpSize - 1) / kWarpSize;
    const std::int64_t last_of_part = (lane_index() + 1) * part - 1;
    const int found = first_lane(last_of_part >= count - 1 || ends[first + last_of_part] > t);
    first += found * part;
    count = min(part, count - found * part);
  }
  const std::int64_t begin = p.cu_seqlens[first];
  const std::int64_t end = first == p.nsequences - 1 ? p.ntokens : ends[first];
  return {first, min(max(begin, std::int64_t{0}), t), min(max(end, t + 1), p.ntokens)};
}

/// Sequence `index`.
template <typename T>
__device__ Sequence sequence_of_index(const Params<T>& p, std::int64_t index) {
  if (p.cu_seqlens == nullptr) return {0, 0, p.ntokens};
  const std::int64_t last = p.nsequences - 1;
  const std::int64_t end = index == last ? p.ntokens : p.cu_seqlens[index + 1];
  const std::int64_t begin = min(std::int64_t{max(p.cu_seqlens[index], 0)}, p.ntokens);
  return {index, begin, min(max(end, begin), p.ntokens)};
}

/// The tokens from t on, up to `end`, that share an entry of seq_idx.
template <typename T>
__device__ Segment segment_at(const Params<T>& p, std::int64_t t, std::int64_t end) {
  if (p.seq_idx == nullptr) return {end, 0};
  const std::int32_t index = p.seq_idx[t];
  for (std::int64_t base = t + 1; base < end; base += kWarpSize) {
    const std::int64_t candidate = base + lane_index();
    const int other = first_lane(candidate < end && p.seq_idx[candidate] != index);
    if (other >= 0) return {base + other, index};
  }
  return {end, index};
}

/// The last token in [begin, t) that is no padding, or begin - 1.
template <typename T>
__device__ std::int64_t live_before(const Params<T>& p, std::int64_t t, std::int64_t begin) {
  if (p.seq_idx == nullptr) return max(t, begin) - 1;
  for (; t > begin; t -= kWarpSize) {
    const std::int64_t candidate = t - 1 - lane_index();
    const int live = first_lane(candidate >= begin && p.seq_idx[candidate] >= 0);
    if (live >= 0) return t - 1 - live;
  }
  return begin - 1;
}

template <int V>
__device__ __forceinline__ void clear(float (&values)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = 0;
}

/// The V channels of one lane, and the inputs that come before some token of a sequence.
template <typename T, int V, int kWidth>
struct Channels {
  const Params<T>& p;
  std::int64_t first;
  bool active;  // the lane has channels at all

  using Window = float[kWidth - 1][V];

  __device__ float* state_row(const Sequence& sequence, int k) const {
    return p.state + sequence.index * p.state_sequence_stride + k * p.state_row_stride + first;
  }

  /// What comes before token t of the sequence, oldest first. Returns seq_idx of the latest of it,
  /// negative if this call has no token before t.
  __device__ std::int32_t load_history(const Sequence& sequence, std::int64_t t,
                                       Window& rows) const {
    std::int32_t index = -1;
    int found = 0;
    bool reset = false;
#pragma unroll
    for (int k = kWidth - 2; k >= 0; --k) {
      clear(rows[k]);
      if (reset) continue;
      t = live_before(p, t, sequence.begin);
      if (t >= sequence.begin) {
        const std::int32_t index_of_t = p.seq_idx != nullptr ? p.seq_idx[t] : 0;
        reset = index >= 0 && index_of_t != index;
        if (reset) continue;
        index = index_of_t;
        ++found;
        if (active) to_floats(load<V>(p.x + t * p.x_stride + first), rows[k]);
      } else if (p.state != nullptr && active) {
        load_floats(state_row(sequence, k + found), true, rows[k]);
      }
    }
    return index;
  }

  /// Replaces the state of the sequence.
  __device__ void store_state(const Sequence& sequence, const Window& rows) const {
    if (!active) return;
#pragma unroll
    for (int k = 0; k < kWidth - 1; ++k) store_floats(state_row(sequence, k), rows[k]);
  }
};

/// A lane that walks through tokens: its parameters, and the inputs before the token at hand.
template <typename T, int V, int kWidth>
class Convolution {
 public:
  __device__ Convolution(const Params<T>& p, std::int64_t channel)
      : p_(p), channels_{p, channel, channel < p.channels} {
    clear(bias_);
    if (!channels_.active) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float* tap = p.weight + channel * p.weight_channel_stride + k * p.weight_tap_stride;
      if (p.weight_aligned) {
        load_floats(tap, true, weight_[k]);
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) weight_[k][v] = tap[v * p.weight_channel_stride];
      }
    }
    if (p.bias != nullptr) load_floats(p.bias + channel, p.bias_aligned, bias_);
  }

  /// The tokens of [t, run_end), and those behind it that depend on a state which this run updates.
  __device__ void run(std::int64_t t, std::int64_t run_end) {
    while (t < run_end) {
      const Sequence sequence = sequence_at(p_, t);
      // The first tokens of a sequence see its incoming state. They are left to the run that the
      // sequence begins in, so that this run alone touches the state.
      const std::int64_t independent = sequence.begin + kWidth - 1;
      if (t > sequence.begin && t < independent) {
        t = min(independent, sequence.end);
        continue;
      }
      const std::int64_t end = min(sequence.end, max(run_end, independent));
      run_sequence(sequence, t, end);
      t = end;
    }
  }

 private:
  // Tokens [t, end) of the sequence, and its state if it begins at t: the state's old value has
  // been used by then.
  __device__ void run_sequence(const Sequence& sequence, std::int64_t t, std::int64_t end) {
    const bool save = p_.save_states && t == sequence.begin;
    std::int32_t index = -1;
    bool known = false;  // whether the window is, which is looked for when a token needs it
    while (t < end) {
      const Segment segment = segment_at(p_, t, end);
      if (segment.index < 0) {
        walk_padding(t, segment.end);
      } else {
        const bool follows = !known && p_.seq_idx == nullptr && t - sequence.begin >= kWidth - 1;
        if (!known && !follows) index = channels_.load_history(sequence, t, window_);
        known = true;
        if (index >= 0 && segment.index != index) {
#pragma unroll
          for (int k = 0; k < kWidth - 1; ++k) clear(window_[k]);
        }
        index = segment.index;
        walk(t, segment.end, follows);
      }
      t = segment.end;
    }
    if (!save) return;
    if (!known || end < sequence.end) channels_.load_history(sequence, sequence.end, window_);
    channels_.store_state(sequence, window_);
  }

  __device__ void walk_padding(std::int64_t t, std::int64_t end) const {
    float zeros[V];
    clear(zeros);
    for (; channels_.active && t < end; ++t) {
      store(p_.y + t * p_.y_stride + channels_.first, from_floats<T, V>(zeros));
    }
  }

  // Tokens [t, end) that follow one another without padding or reset. `follows`: the window is not
  // known yet, and is the rows before t.
  __device__ void walk(std::int64_t t, std::int64_t end, bool follows) {
    int left = channels_.active ? static_cast<int>(end - t) : 0;
    const T* x = p_.x + t * p_.x_stride + channels_.first;
    T* y = p_.y + t * p_.y_stride + channels_.first;
    Pack<T, V> before[kWidth - 1] = {};
    if (follows && left > 0) {
#pragma unroll
      for (int k = 0; k < kWidth - 1; ++k) {
        before[k] = load<V>(x - (kWidth - 1 - k) * p_.x_stride);
      }
    }
    Pack<T, V> ahead[kAhead<V>];
#pragma unroll
    for (int i = 0; i < kAhead<V>; ++i) {
      if (i < left) ahead[i] = load_once<V>(x);
      x += p_.x_stride;
    }
    if (follows) {
#pragma unroll
      for (int k = 0; k < kWidth - 1; ++k) to_floats(before[k], window_[k]);
    }
    const auto next = [&](const Pack<T, V>& input) {
      float row[V];
      to_floats(input, row);
      float out[V];
      convolve(row, out);
      store(y, from_floats<T, V>(out));
      y += p_.y_stride;
    };
    // Without a way out between the rows, whose windows then change places by name alone.
    for (; left >= kAhead<V>; left -= kAhead<V>) {
#pragma unroll
      for (int i = 0; i < kAhead<V>; ++i) {
        const Pack<T, V> input = ahead[i];
        if (i + kAhead<V> < left) ahead[i] = load_once<V>(x);
        x += p_.x_stride;
        next(input);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead<V>; ++i) {
      if (i >= left) break;
      next(ahead[i]);
    }
  }

  // One token; `row` becomes the newest input of the window.
  __device__ void convolve(const float (&row)[V], float (&out)[V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float sum = bias_[v];
#pragma unroll
      for (int k = 0; k < kWidth - 1; ++k) sum = fmaf(weight_[k][v], window_[k][v], sum);
      out[v] = fmaf(weight_[kWidth - 1][v], row[v], sum);
#pragma unroll
      for (int k = 0; k < kWidth - 2; ++k) window_[k][v] = window_[k + 1][v];
      window_[kWidth - 2][v] = row[v];
    }
    if (!p_.silu) return;
#pragma unroll
    for (int v = 0; v < V; ++v) out[v] = silu<T>(out[v]);
  }

  const Params<T>& p_;
  Channels<T, V, kWidth> channels_;
  float weight_[kWidth][V];
  float bias_[V];
  typename Channels<T, V, kWidth>::Window window_;
};

/// The first channel of this lane, if the warp has the `part`-th 32 · V channels.
template <int V>
__device__ std::int64_t first_channel(std::uint32_t part) {
  return (std::int64_t{part} * kWarpSize + lane_index()) * V;
}

/// A run of tokens to each warp.
template <typename T, int V, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks<V>)
    tokens_kernel(const __grid_constant__ Params<T> p) {
  begin_after_previous_kernel();
  const std::uint32_t warp = blockIdx.x * kWarps + threadIdx.x / kWarpSize;
  const std::int64_t begin = warp / p.warps_per_row * p.run_tokens;
  Convolution<T, V, kWidth> convolution(p, first_channel<V>(warp % p.warps_per_row));
  convolution.run(begin, min(begin + p.run_tokens, p.ntokens));
}

/// The state of a sequence to each warp, for calls with several runs whose history skips padding.
template <typename T, int V, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks<V>)
    states_kernel(const __grid_constant__ Params<T> p) {
  begin_after_previous_kernel();
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const std::int64_t index = warp / p.warps_per_row;
  if (index >= p.nsequences) return;
  const std::int64_t channel =
      first_channel<V>(static_cast<std::uint32_t>(warp - index * p.warps_per_row));
  const Channels<T, V, kWidth> channels{p, channel, channel < p.channels};
  const Sequence sequence = sequence_of_index(p, index);
  typename Channels<T, V, kWidth>::Window rows;
  channels.load_history(sequence, sequence.end, rows);
  channels.store_state(sequence, rows);
}

}  // namespace adder::cuda::conv
