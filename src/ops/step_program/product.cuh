#pragma once

// Projections: v times the block's rows of the weight, and what comes after.

#include "ops/step_program/vector.cuh"
#include "ops/step_program/weights.cuh"

namespace adder::cuda::program {

/// A warp's products: of all rows, an eighth of each piece.
template <typename X, int kBatch>
class Product {
  using S = Shape<X, kBatch>;
  static constexpr int kWays = 2;                   // sums that do not wait for each other
  static constexpr int kNext = 2 * kStep * kWarps;  // bytes from a step of the warp to the next

 public:
  __device__ Product(const Shared& shared, const Ring& ring) : ring_(ring), slots_(shared.slots) {
    const int matrix = lane_index() / 8;
    const int row = lane_index() % 8;
    row_ = matrix % 2 * 8 + row;
    column_ = matrix / 2 * 16 + warp_index() * 2 * kStep;
    const int v_row = min(matrix / 2 * 8 + row, S::kRows - 1);  // what is not there, twice
    v_ = to_shared(shared.v) + static_cast<std::uint32_t>(v_row * shared.v_row + matrix % 2 * 16 +
                                                          warp_index() * 2 * kStep);
  }

  /// The next `rows` rows, tile by tile, to slots from those of `tile` on.
  __device__ __forceinline__ void run(const Linear<X>& linear, int rows, int tile) {
    // Numbers in registers: the compiler would read them again after every wait.
    const int in = linear.in;
    const int piece = linear.piece;
    const int log2_stage_rows = linear.log2_stage_rows;
    const int stage_row = linear.stage_row;
    float* slots = slots_ + tile * S::kTileSlots;
#pragma unroll 1
    for (; rows > 0; rows -= kTileRows, slots += S::kTileSlots) {
      const int tile_rows = min(rows, kTileRows);
      const int row = min(row_, tile_rows - 1);  // what is not there, twice
      const int stages = ((tile_rows - 1) >> log2_stage_rows) + 1;
      const int stage = row >> log2_stage_rows;
      const int at = (row - (stage << log2_stage_rows)) * stage_row + column_;
      float sums[kWays][S::kHalves][4] = {};
      std::uint32_t v = v_;
#pragma unroll 1
      for (int left = in; left > 0; left -= piece) {
        ring_.wait_until_full(stages);
        multiply(to_shared(ring_.stage(stage)) + static_cast<std::uint32_t>(at), v,
                 min(piece, left) / kStep - warp_index(), sums);
        ring_.release(stages);
        ring_.advance_little(stages);
        v += static_cast<std::uint32_t>(2 * piece);
      }
      hand_in(slots, sums);
    }
  }

  /// Goes past stages that are for the warps beside, which release them. Not without having seen
  /// them full: the parity of a later round would look the same.
  __device__ __forceinline__ void pass(int stages) {
#pragma unroll 1
    for (; stages > 0; stages -= kFewestStages) {
      const int now = min(stages, kFewestStages);
      ring_.wait_until_full(now);
      ring_.advance_little(now);
    }
  }

 private:
  // So many `steps` of all warps are left, this one being the first of one of its own.
  __device__ __forceinline__ static void multiply(std::uint32_t weight, std::uint32_t v, int steps,
                                                  float (&sums)[kWays][S::kHalves][4]) {
    Operands operands[4];
    const auto load = [&](int i, int ahead) {
      if (steps > ahead * kWarps) operands[i].load(weight + ahead * kNext, v + ahead * kNext);
    };
    const auto use = [&](int i) {
      if (steps > i * kWarps) operands[i].multiply(sums[i % kWays]);
    };
    // Two are on their way while two are multiplied.
    load(0, 0);
    load(1, 1);
#pragma unroll 1
    while (steps > 0) {
      load(2, 2);
      load(3, 3);
      use(0);
      use(1);
      load(0, 4);
      load(1, 5);
      use(2);
      use(3);
      steps -= 4 * kWarps;
      weight += 4 * kNext;
      v += 4 * kNext;
    }
  }

  struct Operands {
    std::uint32_t a[4];
    std::uint32_t b[4];

    __device__ __forceinline__ void load(std::uint32_t weight, std::uint32_t v) {
      ldmatrix_x4(a, weight);
      if constexpr (S::kHalves == 2) {
        ldmatrix_x4(b, v);
      } else {
        ldmatrix_x2(b[0], b[1], v);
      }
    }
    __device__ __forceinline__ void multiply(float (&sum)[S::kHalves][4]) const {
      if constexpr (S::kHalves == 2) TensorCore<bf16>::multiply(sum[1], a, b[2], b[3]);
      TensorCore<bf16>::multiply(sum[0], a, b[0], b[1]);
    }
  };

  __device__ __forceinline__ void hand_in(float* slots,
                                          const float (&sums)[kWays][S::kHalves][4]) const {
    const int g = lane_index() / 4;
    const int t = lane_index() % 4;
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * half + 2 * t + i % 2;  // of v
        if (row >= S::kRows) continue;
        slots[S::slot(row, g + i / 2 * 8, warp_index())] = sums[0][half][i] + sums[1][half][i];
      }
    }
  }

  Ring ring_;
  float* slots_;
  int row_, column_;  ///< of a tile, and bytes from the beginning of a row: this lane's address
  std::uint32_t v_;
};

/// The sum of a row of the round's tiles and a sequence.
template <typename X, int kBatch>
__device__ __forceinline__ float sum_of(const Shared& shared, int row, int sequence) {
  using S = Shape<X, kBatch>;
  const float* tile = shared.slots + row / kTileRows * S::kTileSlots;
  float sum = 0;
#pragma unroll
  for (int part = kParts<X> - 1; part >= 0; --part) {  // the least first
    float of_warps[kWarps];
    const auto slot = [&](int warp) {
      return tile + S::slot(part * kBatch + sequence, row % kTileRows, warp);
    };
    if constexpr (kBatch == 1) {
      load_floats(slot(0), true, of_warps);
    } else {
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) of_warps[warp] = *slot(warp);
    }
#pragma unroll
    for (int distance = kWarps / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < distance; ++i) of_warps[i] += of_warps[i + distance];
    }
    sum += of_warps[0];
  }
  return sum;
}

/// What the convolution of a column needs besides the product, loaded ahead of it.
struct ConvInput {
  int channel;  ///< or -1: the column has no convolution
  float bias;
  float taps[kConvWidth], before[kConvWidth - 1];

  template <typename X>
  __device__ __forceinline__ void load(const Linear<X>& p, int row, int sequence, bool exists) {
    channel = exists ? row - p.conv_begin : -1;
    if (channel < 0 || channel >= p.conv_channels) {
      channel = -1;
      return;
    }
    const float* state = p.conv_state.data + sequence * p.conv_state.row + channel;
    const float* weight = p.conv_weight + channel * p.conv_channel_stride;
    bias = p.conv_bias == nullptr ? 0.0F : p.conv_bias[channel];
#pragma unroll
    for (int k = 0; k < kConvWidth; ++k) {
      if (k < p.conv_width) taps[k] = weight[k * p.conv_tap_stride];
      if (k + 1 < p.conv_width) before[k] = state[k * p.conv_state_row];
    }
  }
};

/// As if it had been stored and read again.
template <typename X>
__device__ __forceinline__ float rounded(float x) {
  float out[1];
  to_floats(from_floats<X, 1>({x}), out);
  return out[0];
}

/// The column through the convolution, its newest input being `x`.
template <typename X>
__device__ __forceinline__ float convolve(const Linear<X>& p, int sequence, float x,
                                          const ConvInput& in) {
  float* state = p.conv_state.data + sequence * p.conv_state.row + in.channel;
  float sum = in.bias;
#pragma unroll
  for (int k = 0; k < kConvWidth; ++k) {
    if (k + 1 < p.conv_width) {
      if (k + 1 < kConvWidth) sum = fmaf(in.taps[k], in.before[k], sum);
      if (k > 0 && k + 1 < kConvWidth) state[(k - 1) * p.conv_state_row] = in.before[k];
    } else if (k + 1 == p.conv_width) {
      sum = fmaf(in.taps[k], x, sum);
      if (k > 0) state[(k - 1) * p.conv_state_row] = x;
    }
  }
  return silu<X>(sum);
}

template <typename X>
__device__ __forceinline__ void store_result(const Linear<X>& p, int row, int sequence, float v) {
  if (p.y_is_float) {
    static_cast<float*>(p.y.data)[sequence * p.y.row + row] = v;
  } else {
    write(static_cast<X*>(p.y.data) + sequence * p.y.row + row, v);
  }
}

template <typename X>
__device__ __forceinline__ void finish(const Linear<X>& p, int row, int sequence, float sum,
                                       const ConvInput& conv) {
  if (conv.channel >= 0) {
    write(p.conv_y.data + sequence * p.conv_y.row + conv.channel,
          convolve(p, sequence, rounded<X>(sum), conv));
  } else {
    store_result(p, row, sequence, sum);
  }
}

/// `residual` is the block's own. `go_on` is called once all threads are in this instruction and
/// none in the one before.
template <typename X, int kBatch, bool kLinked, typename GoOn>
__device__ __forceinline__ void run_linear(const Instruction<X>& instruction, const Shared& shared,
                                           Product<X, kBatch>& product, const Grid& grid,
                                           const Exchange<X>& from, const Exchange<X>& to,
                                           float* residual, const GoOn& go_on) {
  const Linear<X>& p = instruction.linear;
  const Maker<X, kBatch, kLinked> maker(p, shared, from, residual);
  const Share share(p);
  const int me = static_cast<int>(threadIdx.x);
  ConvInput conv;
  // Of a round's results, row me / kBatch, sequence me % kBatch, and so on, are this thread's.
  const auto load_conv = [&](int first, int result) {
    const int place = first + result / kBatch;
    const int sequence = result % kBatch;
    conv.load(p, share.row_of(place), sequence, place < share.rows && sequence < p.batch);
  };
  load_conv(share.split, me);
  if (instruction.enters) grid.enter();
  const float squares = maker.run();
  go_on();

  // Rounds of as many rows as there are slots for; of a mixer, which has slots for all, first those
  // that are finished beside.
  const bool is_mixer = kLinked && instruction.kind == Kind::mixer;
  int barrier = is_mixer ? kSharedRows : kMixerEnd;
  int first = 0;
  int tile = 0;
#pragma unroll 1
  do {
    const int end = barrier == kSharedRows ? share.shared_end()
                    : barrier == kChannelRows
                        ? share.split
                        : min(first + shared.round_tiles * kTileRows, share.rows);
    product.run(p, end - first, tile);
    if (first == 0 && p.is_scaled) maker.put_sum(squares);
    if (barrier != kMixerEnd) {
      arrive_for_others(barrier);
      if (end == share.split) {
        if (barrier == kSharedRows) arrive_for_others(kChannelRows);
        product.pass(state_stages(instruction.heads, share));
        barrier = kChannelRows;
      }
      ++barrier;
      tile += (end - first + kTileRows - 1) / kTileRows;
      first = end;
      continue;
    }
    if (is_mixer) {
      wait_for_others(kMixerEnd);
    } else {
      sync_threads();
    }
#pragma unroll 1
    for (int i = me; i < (end - first) * kBatch; i += kThreads) {
      const int sequence = i % kBatch;
      if (sequence >= p.batch) continue;
      const int place = first + i / kBatch;
      const int row = share.row_of(place);
      float v = sum_of<X, kBatch>(shared, tile * kTileRows + i / kBatch, sequence) *
                maker.scale_of(sequence);
      if (p.bias != nullptr) v += p.bias[row];
      if (is_mixer) {
        to.put(row, shared.channels[place - share.split].x * silu<X>(v));
      } else if (kLinked && p.gives) {
        to.put(sequence * p.given + row, v);
      } else {
        if (first > share.split || i != me) load_conv(first, i);
        finish(p, row, sequence, v, conv);
      }
    }
    if (end < share.rows) sync_threads();  // before the slots are filled again
    first = end;
  } while (barrier != kMixerEnd || first < share.rows);
  if (p.norm_y.data != nullptr && blockIdx.x == 0) maker.store_norm();
}

}  // namespace adder::cuda::program
