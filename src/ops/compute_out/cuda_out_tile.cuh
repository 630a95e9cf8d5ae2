#pragma once

// A tile of outputs in registers, 64 tokens × 64 columns of a head, the scores C Bᵀ beside it, and
// what a block of 128 threads does with them. Warp w owns rows 16 w to 16 w + 15; rows i and tokens
// j are counted in blocks of 64 tokens, and the block of j is that of i (the diagonal, where only
// j <= i counts) or an earlier one.
//
//   tensor cores (bf16, f16)   scores stay in registers and become operand A of their product with
//                              x: weighted in float32, rounded to the digits of T. States are read
//                              as floats and rounded to operand B. Fragments above the diagonal are
//                              never multiplied.
//   float32 unit (f32)         a thread owns 8 rows × 4 columns: per 4 steps of k 12 reads of
//   shared
//                              memory of 16 bytes for 128 products. Weights go through shared
//                              memory.

#include "cuda/math.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/fwd_pass_state/token_tile.cuh"

namespace adder::cuda {

/// What decides about the weight of a token j for a row i, but for their scalars.
struct Weighing {
  bool diagonal;
  bool has_segments;
};

template <typename T>
class OutTile {
 public:
  using Element = T;
  struct Scratch {};
  /// Blocks of a multiprocessor that its shared memory has room for, and registers should.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kBlocks = 3;
#else
  static constexpr int kBlocks = 4;
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
      std::uint32_t a[4];
      load_C(a, C, k, lane);
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        if (8 * i >= ncolumns) break;
        const float* at = corner + k * kPitch + 8 * i;
        TensorCore<T>::multiply_computed_b(y_[i], a, TensorCore<T>::computed(at[0], at[kPitch]),
                                           TensorCore<T>::computed(at[8 * kPitch], at[9 * kPitch]));
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
      const float decay = decay_of<T>(rows_[half].high + rows_[half].low);
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
      std::uint32_t a[4];
      load_C(a, C, k, lane);
#pragma unroll
      for (int j = 0; j < kTileRows; j += 16) {
        if (diagonal && j > first_row_) break;
        std::uint32_t b[4];
        ldmatrix_x4(b,
                    B + SharedTile<T>::offset(j + (lane & 7) + (lane >> 4 << 3), k + (lane & 8)));
        TensorCore<T>::multiply(scores_[j / 8], a, b[0], b[1]);
        TensorCore<T>::multiply(scores_[j / 8 + 1], a, b[2], b[3]);
      }
    }
  }

  /// y += weights · x.
  __device__ __forceinline__ void add_tokens(const unsigned char* x, const TokenScalars& tokens,
                                             const Weighing& how, int ncolumns, Scratch&) {
    const int lane = opaque(lane_);
#pragma unroll
    for (int j = 0; j < kTileRows; j += 16) {
      if (how.diagonal && j > first_row_) break;
      typename TensorCore<T>::Computed a[4];
      weigh(a, j, lane, tokens, how);
#pragma unroll
      for (int i = 0; i < kFragments; i += 2) {
        if (8 * i >= ncolumns) break;
        std::uint32_t b[4];
        ldmatrix_x4_trans(b, x + SharedTile<T>::offset(j + (lane & 15), 8 * i + (lane >> 4 << 3)));
        TensorCore<T>::multiply_computed_a(y_[i], a, b[0], b[1]);
        TensorCore<T>::multiply_computed_a(y_[i + 1], a, b[2], b[3]);
      }
    }
  }

 private:
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

  __device__ __forceinline__ void load_C(std::uint32_t (&a)[4], const unsigned char* C, int k,
                                         int lane) const {
    ldmatrix_x4(a, C + SharedTile<T>::offset(first_row_ + (lane & 15), k + (lane >> 4 << 3)));
  }

  // Operand A of 16 tokens from j on.
  __device__ __forceinline__ void weigh(typename TensorCore<T>::Computed (&a)[4], int j, int lane,
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
        const float first = scores[0] * dt.x * decay_of<T>((row.high - high.x) + (row.low - low.x));
        const float second =
            scores[1] * dt.y * decay_of<T>((row.high - high.y) + (row.low - low.y));
        a[2 * side + half] =
            TensorCore<T>::computed(token <= last && segments.x == row.segment ? first : 0.0F,
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

template <>
class OutTile<float> {
 public:
  using Element = float;
  static constexpr int kBlocks = 2;
  struct Scratch {
    alignas(16) unsigned char weights[SharedTile<float>::kBytes];
  };

  template <typename F>
  __device__ __forceinline__ void visit(F&& f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      f(row(r), column_, rows_[r].segment, y_[r][0], y_[r][1]);
      f(row(r), column_ + 2, rows_[r].segment, y_[r][2], y_[r][3]);
    }
  }

  __device__ __forceinline__ void clear_y() { clear(y_); }
  __device__ __forceinline__ void clear_scores() { clear(scores_); }

  __device__ __forceinline__ void add_state(const unsigned char* C, const unsigned char* S,
                                            int ndstate, int) {
    multiply(C, S, ndstate);
  }

  __device__ __forceinline__ void decay_rows(const TokenScalars& tokens, bool has_segments) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows_[r] = {tokens.high[row(r)], tokens.low[row(r)],
                  has_segments ? tokens.segments[row(r)] : 0};
      const bool reached = rows_[r].segment == 0;
      const float decay = decay_of<float>(rows_[r].high + rows_[r].low);
#pragma unroll
      for (int k = 0; k < 4; ++k) y_[r][k] = reached ? y_[r][k] * decay : 0.0F;
    }
  }

  __device__ __forceinline__ void add_scores(const unsigned char* C, const unsigned char* B,
                                             int ndstate, bool) {
#pragma unroll 1
    for (int k = 0; k < ndstate; k += 4) {
      float4 b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = four(B, token(i), k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 c = four(C, row(r), k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores_[r][i] += c.x * b[i].x;
          scores_[r][i] += c.y * b[i].y;
          scores_[r][i] += c.z * b[i].z;
          scores_[r][i] += c.w * b[i].w;
        }
      }
    }
  }

  __device__ __forceinline__ void add_tokens(const unsigned char* x, const TokenScalars& tokens,
                                             const Weighing& how, int, Scratch& scratch) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = token(i);
      const std::int32_t segment = how.has_segments ? tokens.segments[j] : 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const bool counts = (!how.diagonal || j <= row(r)) && segment == rows_[r].segment;
        const float weight = scores_[r][i] * tokens.dt[j] *
                             decay_of<float>(tokens.log_decay(j, rows_[r].high, rows_[r].low));
        *reinterpret_cast<float*>(scratch.weights + SharedTile<float>::offset(row(r), j)) =
            counts ? weight : 0.0F;
      }
    }
    __syncwarp();  // rows of weights are the warp's own
    multiply(scratch.weights, x, how.diagonal ? first_row_ + 16 : kTileRows);
    __syncwarp();
  }

 private:
  static constexpr int kRows = 8;

  struct Row {
    float high, low;
    std::int32_t segment;
  };

  static __device__ __forceinline__ void clear(float (&values)[kRows][4]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) values[r][k] = 0.0F;
    }
  }

  static __device__ __forceinline__ float4 four(const unsigned char* tile, int row, int column) {
    return *reinterpret_cast<const float4*>(tile + SharedTile<float>::offset(row, column));
  }

  /// Rows of the two halves of a warp alternate: the eight reads of a row then meet no other bank.
  __device__ __forceinline__ int row(int r) const { return first_row_ + 2 * r + lane_ / 16; }
  __device__ __forceinline__ int token(int i) const { return lane_ % 16 + 16 * i; }

  /// y += a b over the first `n` columns of a, rows of b.
  __device__ __forceinline__ void multiply(const unsigned char* a, const unsigned char* b, int n) {
#pragma unroll 1
    for (int k = 0; k < n; k += 4) {
      float4 right[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) right[i] = four(b, k + i, column_);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 left = four(a, row(r), k);
        add_product(y_[r], left.x, right[0]);
        add_product(y_[r], left.y, right[1]);
        add_product(y_[r], left.z, right[2]);
        add_product(y_[r], left.w, right[3]);
      }
    }
  }

  static __device__ __forceinline__ void add_product(float (&sum)[4], float a, const float4& b) {
    sum[0] += a * b.x;
    sum[1] += a * b.y;
    sum[2] += a * b.z;
    sum[3] += a * b.w;
  }

  const int lane_ = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row_ = static_cast<int>(threadIdx.x) / kWarpSize * 16;  // of the warp
  const int column_ = lane_ % 16 * 4;
  float y_[kRows][4];
  float scores_[kRows][4];
  Row rows_[kRows];
};

}  // namespace adder::cuda
