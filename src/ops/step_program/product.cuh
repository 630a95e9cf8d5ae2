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
  __device__ Product(const Shared& shared, const Ring& ring)
      : ring_(ring), slots_(shared.slots + warp_index() * S::kRows * kTileRows) {
    const int matrix = lane_index() / 8;
    const int row = lane_index() % 8;
    row_ = matrix % 2 * 8 + row;
    column_ = matrix / 2 * 16 + warp_index() * 2 * kStep;
    const int v_row = min(matrix / 2 * 8 + row, S::kRows - 1);  // what is not there, twice
    v_ = to_shared(shared.v) + static_cast<std::uint32_t>(v_row * shared.v_row + matrix % 2 * 16 +
                                                          warp_index() * 2 * kStep);
  }

  /// The next `rows` rows, tile by tile.
  __device__ void run(const Linear<X>& linear, int rows) {
    float* slots = slots_;
#pragma unroll 1
    for (; rows > 0; rows -= kTileRows, slots += S::kTileSlots) {
      const int stages = ((min(rows, kTileRows) - 1) >> linear.log2_stage_rows) + 1;
      float sums[kWays][S::kHalves][4] = {};
#pragma unroll 1
      for (int begin = 0; begin < linear.in; begin += linear.piece) {
        multiply(linear, begin, min(rows, kTileRows), stages, sums);
      }
      hand_in(slots, sums);
    }
  }

 private:
  __device__ __forceinline__ void multiply(const Linear<X>& linear, int begin, int rows, int stages,
                                           float (&sums)[kWays][S::kHalves][4]) {
    const int row = min(row_, rows - 1);  // what is not there, twice
    const int stage = row >> linear.log2_stage_rows;
    std::uint32_t weight =
        to_shared(ring_.stage(stage)) +
        static_cast<std::uint32_t>((row - (stage << linear.log2_stage_rows)) * linear.stage_row +
                                   column_);
    std::uint32_t v = v_ + static_cast<std::uint32_t>(2 * begin);
    Ring done = ring_;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      ring_.wait_until_full();
      ring_.advance();
    }
    int left = min(linear.piece, linear.in - begin) / kStep - warp_index();  // steps, of all warps
#pragma unroll 1
    for (; left > kWarps; left -= 2 * kWarps) {
      multiply_step(weight, v, sums[0]);
      multiply_step(weight + kNext, v + kNext, sums[1]);
      weight += 2 * kNext;
      v += 2 * kNext;
    }
    if (left > 0) multiply_step(weight, v, sums[0]);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      done.release();
      done.advance();
    }
  }

  __device__ __forceinline__ static void multiply_step(std::uint32_t weight, std::uint32_t v,
                                                       float (&sum)[S::kHalves][4]) {
    std::uint32_t a[4];
    std::uint32_t b[4];
    ldmatrix_x4(a, weight);
    if constexpr (S::kHalves == 2) {
      ldmatrix_x4(b, v);
      TensorCore<bf16>::multiply(sum[1], a, b[2], b[3]);
    } else {
      ldmatrix_x2(b[0], b[1], v);
    }
    TensorCore<bf16>::multiply(sum[0], a, b[0], b[1]);
  }

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
        slots[row * kTileRows + g + i / 2 * 8] = sums[0][half][i] + sums[1][half][i];
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
  const float* from =
      shared.slots + row / kTileRows * S::kTileSlots + sequence * kTileRows + row % kTileRows;
  float sum = 0;
#pragma unroll
  for (int part = kParts<X> - 1; part >= 0; --part) {  // the least first
    float of_part = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      of_part += from[(warp * S::kRows + part * kBatch) * kTileRows];
    }
    sum += of_part;
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

/// The column through the convolution, its newest input being `x`.
template <typename X>
__device__ __forceinline__ void convolve(const Linear<X>& p, int sequence, float x,
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
  write(p.conv_y.data + sequence * p.conv_y.row + in.channel, silu<X>(sum));
}

template <typename X>
__device__ __forceinline__ void finish(const Linear<X>& p, int row, int sequence, float sum,
                                       const ConvInput& conv) {
  if (p.bias != nullptr) sum += p.bias[row];
  if (conv.channel >= 0) {
    // As the product would have been stored and read again.
    const Pack<X, 1> rounded = from_floats<X, 1>({sum});
    float one[1];
    to_floats(rounded, one);
    convolve(p, sequence, one[0], conv);
  } else if (p.y_is_float) {
    static_cast<float*>(p.y.data)[sequence * p.y.row + row] = sum;
  } else {
    write(static_cast<X*>(p.y.data) + sequence * p.y.row + row, sum);
  }
}

template <typename X, int kBatch>
__device__ __forceinline__ void run_linear(const Linear<X>& p, const Shared& shared,
                                           Product<X, kBatch>& product, const Grid& grid,
                                           bool is_first) {
  const Maker<X, kBatch> maker(p, shared);
  const Share share(p);
  const int me = static_cast<int>(threadIdx.x);
  ConvInput conv;
  // This thread's results are row me / kBatch of the block's, of sequence me % kBatch, and so on.
  const auto load_conv = [&](int result) {
    const int row = result / kBatch;
    const int sequence = result % kBatch;
    conv.load(p, share.first + row, sequence, row < share.rows && sequence < p.batch);
  };
  load_conv(me);
  if (!is_first) grid.wait();
  const float squares = maker.run();

  const int round_rows = shared.round_tiles * kTileRows;
#pragma unroll 1
  for (int first = 0; first < share.rows; first += round_rows) {
    const int rows = min(round_rows, share.rows - first);
    product.run(p, rows);
    if (first == 0 && p.is_scaled) maker.put_sum(squares);
    sync_threads();
#pragma unroll 1
    for (int i = me; i < rows * kBatch; i += kThreads) {
      const int sequence = i % kBatch;
      if (sequence >= p.batch) continue;
      if (first > 0 || i != me) load_conv(first * kBatch + i);
      const float sum = sum_of<X, kBatch>(shared, i / kBatch, sequence);
      finish(p, share.first + first + i / kBatch, sequence, sum * maker.scale_of(sequence), conv);
    }
    if (first + rows < share.rows) sync_threads();  // before the slots are filled again
  }
  if (p.norm_y.data != nullptr && blockIdx.x == 0) maker.store_norm();
}

}  // namespace adder::cuda::program
