#pragma once

// A tile of outputs in registers, 64 tokens × 64 columns of a head, the scores C Bᵀ beside it, and
// what a block of 128 threads does with them. Warp w owns rows 16 w to 16 w + 15; rows i and tokens
// j are counted in blocks of 64 tokens, and the block of j is that of i (the diagonal, where only
// j <= i counts) or an earlier one.
//
// Scores stay in registers and become operand A of their product with x: weighted in float32,
// rounded to the digits of the arithmetic A. States are read as floats and rounded to operand B.
// Fragments above the diagonal are never multiplied. Floats take six products, or one if tf32 is
// allowed (see tensor_core.cuh).

#include "cuda/math.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/fwd_pass_state/tile_operands.cuh"

namespace adder::cuda {

/// What decides about the weight of a token j for a row i, but for their scalars.
struct Weighing {
  bool diagonal;
  bool has_segments;
};

template <typename A>
class OutTile {
 public:
  using Element = ElementOf<A>;
  /// Blocks of a multiprocessor that its shared memory has room for, and registers should.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kBlocks = sizeof(Element) == 2 ? 3 : 2;
#else
  static constexpr int kBlocks = sizeof(Element) == 2 ? 4 : 3;
#endif

  /// Calls f(row, column, segment, first, second) for elements (row, column) and (row, column + 1);
  /// the segment is the row's, once decay_rows knows it.
  template <typename F>
  __device__ __forceinline__ void visit(F&& f) {
    const int lane = opaque(lane_);
    const int row = first_row_ + (lane >> 2);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int column = 8 * i + ((lane & 3) << 1);
      f(row, column, rows_[0].segment, y_[i][0], y_[i][1]);
      f(row + 8, column, rows_[1].segment, y_[i][2], y_[i][3]);
    }
  }

  __device__ __forceinline__ void clear_y() { clear(y_); }
  __device__ __forceinline__ void clear_scores() { clear(scores_); }

  /// y += C S over `ndstate` columns of C, rows of S; `ncolumns` of S are there.
  __device__ __forceinline__ void add_state(const unsigned char* C, const unsigned char* S,
                                            int ndstate, int ncolumns) {
    const int lane = opaque(lane_);
    const float* corner =
        reinterpret_cast<const float*>(S) + ((lane & 3) << 1) * kPitch + (lane >> 2);
#pragma unroll
    for (int k = 0; k < kTileColumns; k += 16) {
      if (k >= ndstate) break;
      Stored a[4];
      Operands::load_a(a, C, first_row_, k, lane);
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        if (8 * i >= ncolumns) break;
        const float* at = corner + k * kPitch + 8 * i;
        Core::multiply_computed_b(y_[i], a, Core::computed(at[0], at[kPitch]),
                                  Core::computed(at[8 * kPitch], at[9 * kPitch]));
      }
    }
  }

  /// y = 2^s y in the rows that the state before the chunk reaches, else 0; remembers the rows'
  /// scalars.
  __device__ __forceinline__ void decay_rows(const TokenScalars& tokens, bool has_segments) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_ + 8 * half;
      rows_[half] = {tokens.high[row], tokens.low[row], has_segments ? tokens.segments[row] : 0};
      const bool reached = rows_[half].segment == 0;
      const float decay = decay_of<Element>(rows_[half].high + rows_[half].low);
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        y_[i][2 * half] = reached ? y_[i][2 * half] * decay : 0.0F;
        y_[i][2 * half + 1] = reached ? y_[i][2 * half + 1] * decay : 0.0F;
      }
    }
  }

  /// scores += C Bᵀ over `ndstate` columns.
  __device__ __forceinline__ void add_scores(const unsigned char* C, const unsigned char* B,
                                             int ndstate, bool diagonal) {
    const int lane = opaque(lane_);
#pragma unroll
    for (int k = 0; k < kTileColumns; k += 16) {
      if (k >= ndstate) break;
      Stored a[4];
      Operands::load_a(a, C, first_row_, k, lane);
#pragma unroll
      for (int j = 0; j < kTileRows; j += 16) {
        if (diagonal && j > first_row_) break;
        Stored b[4];
        Operands::load_b(b, B, j, k, lane);
        Core::multiply(scores_[j / 8], a, b[0], b[1]);
        Core::multiply(scores_[j / 8 + 1], a, b[2], b[3]);
      }
    }
  }

  /// y += weights · x.
  __device__ __forceinline__ void add_tokens(const unsigned char* x, const TokenScalars& tokens,
                                             const Weighing& how, int ncolumns) {
    const int lane = opaque(lane_);
#pragma unroll
    for (int j = 0; j < kTileRows; j += 16) {
      if (how.diagonal && j > first_row_) break;
      Computed a[4];
      weigh(a, j, lane, tokens, how);
#pragma unroll
      for (int i = 0; i < kFragments; i += 2) {
        if (8 * i >= ncolumns) break;
        Stored b[4];
        Operands::load_b_transposed(b, x, 8 * i, j, lane);
        Core::multiply_computed_a(y_[i], a, b[0], b[1]);
        Core::multiply_computed_a(y_[i + 1], a, b[2], b[3]);
      }
    }
  }

 private:
  using Core = TensorCore<A>;
  using Stored = typename Core::Stored;
  using Computed = typename Core::Computed;
  using Operands = TileOperands<A>;

  static constexpr int kFragments = 8;
  static constexpr int kPitch = SharedTile<float>::kPitch;

  struct Row {
    float high, low;
    std::int32_t segment;
  };

  static __device__ __forceinline__ void clear(float (&fragments)[kFragments][4]) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) fragments[i][k] = 0.0F;
    }
  }

  // Operand A of 16 tokens from j on.
  __device__ __forceinline__ void weigh(Computed (&a)[4], int j, int lane,
                                        const TokenScalars& tokens, const Weighing& how) const {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int token = j + 8 * side + ((lane & 3) << 1);
      const float2 dt = *reinterpret_cast<const float2*>(tokens.dt + token);
      const float2 high = *reinterpret_cast<const float2*>(tokens.high + token);
      const float2 low = *reinterpret_cast<const float2*>(tokens.low + token);
      const int2 segments = how.has_segments
                                ? *reinterpret_cast<const int2*>(tokens.segments + token)
                                : make_int2(0, 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Row& row = rows_[half];
        const int last = how.diagonal ? row_ + 8 * half : kTileRows;  // token that counts
        const float* scores = scores_[j / 8 + side] + 2 * half;
        const float first =
            scores[0] * dt.x * decay_of<Element>((row.high - high.x) + (row.low - low.x));
        const float second =
            scores[1] * dt.y * decay_of<Element>((row.high - high.y) + (row.low - low.y));
        a[2 * side + half] =
            Core::computed(token <= last && segments.x == row.segment ? first : 0.0F,
                           token + 1 <= last && segments.y == row.segment ? second : 0.0F);
      }
    }
  }

  const int lane_ = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row_ = static_cast<int>(threadIdx.x) / kWarpSize * 16;  // of the warp
  const int row_ = first_row_ + lane_ / 4;
  float y_[kFragments][4];
  float scores_[kFragments][4];
  Row rows_[2];
};

}  // namespace adder::cuda
