#pragma once

// A tile of a state in registers, kTile (dstate) × kTile (headdim), and what a block of 128 threads
// does with it: S = 2^s S + Σ_j factor_j B_j x_jᵀ over 64 tokens at a time.
//
//   tensor cores (bf16, f16)   a warp owns 16 rows: of all 64 columns, or of 16 of 32. Operand A is
//                              factor_j B_jᵀ, scaled on its way from shared memory and rounded
//                              precisely (two products for bf16, whose digits alone would cost the
//                              state 1.7e-3); operand B is x. The sum over a chunk begins at zero
//                              and is added to S by the ordinary, correctly rounded unit: tensor
//                              cores round sums towards zero, which would add up over the sequence.
//   float32 unit (f32)         a thread owns 8 × 4 or 2 × 4 elements: per token three (two) reads
//   of
//                              shared memory for 32 (8) products.

#include "cuda/tensor_core.cuh"
#include "ops/fwd_pass_state/token_tile.cuh"

namespace adder::cuda {

template <typename T, int kTile>
class StateTile {
 public:
  using Element = T;
  static constexpr int kSize = kTile;
  static constexpr int kBlocks = 4;  ///< of a multiprocessor, for which there should be registers

  /// Calls f(n, p, first, second) for the elements (n, p) and (n, p + 1) of the tile.
  template <typename F>
  __device__ __forceinline__ void visit(F&& f) {
    const int lane = opaque(lane_);
    const int n = first_row_ + (lane >> 2);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int p = first_column_ + 8 * i + ((lane & 3) << 1);
      f(n, p, state_[i][0], state_[i][1]);
      f(n + 8, p, state_[i][2], state_[i][3]);
    }
  }

  __device__ __forceinline__ void begin_chunk(float decay) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        state_[i][k] *= decay;
        sum_[i][k] = 0.0F;
      }
    }
  }

  __device__ __forceinline__ void add_tokens(const unsigned char* B, const unsigned char* x,
                                             const float* factors, int ntokens) {
    const int lane = opaque(lane_);
    const int row_of_B = (lane >> 4 << 3) + (lane & 7);
    const int column_of_B = first_row_ + (lane & 8);
    const int pair = (lane & 3) << 1;
#pragma unroll
    for (int k = 0; k < kTileRows; k += 16) {
      if (k >= ntokens) break;
      std::uint32_t plain[4];
      ldmatrix_x4_trans(plain, B + SharedTile<T>::offset(k + row_of_B, column_of_B));
      const float2 near = *reinterpret_cast<const float2*>(factors + k + pair);
      const float2 far = *reinterpret_cast<const float2*>(factors + k + pair + 8);
      typename TensorCore<T>::Precise weighted[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factor = i < 2 ? near : far;
        const float2 v = Pair<T>::to_floats(plain[i]);
        weighted[i] = TensorCore<T>::precise(v.x * factor.x, v.y * factor.y);
      }
#pragma unroll
      for (int i = 0; i < kFragments; i += 2) {
        std::uint32_t b[4];
        ldmatrix_x4_trans(b, x + SharedTile<T>::offset(k + (lane & 15),
                                                       first_column_ + 8 * i + (lane >> 4 << 3)));
        TensorCore<T>::multiply_precise_a(sum_[i], weighted, b[0], b[1]);
        TensorCore<T>::multiply_precise_a(sum_[i + 1], weighted, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void end_chunk() {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) state_[i][k] += sum_[i][k];
    }
  }

 private:
  static constexpr int kRowWarps = kTile / 16;
  static constexpr int kColumns = kTile / (4 / kRowWarps);  // of a warp
  static constexpr int kFragments = kColumns / 8;

  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int first_row_ = static_cast<int>(threadIdx.x) / 32 % kRowWarps * 16;
  const int first_column_ = static_cast<int>(threadIdx.x) / 32 / kRowWarps * kColumns;
  float state_[kFragments][4];
  float sum_[kFragments][4];
};

template <int kTile>
class StateTile<float, kTile> {
 public:
  using Element = float;
  static constexpr int kSize = kTile;
  static constexpr int kBlocks = 3;

  template <typename F>
  __device__ __forceinline__ void visit(F&& f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      f(first_row_ + r, first_column_, state_[r][0], state_[r][1]);
      f(first_row_ + r, first_column_ + 2, state_[r][2], state_[r][3]);
    }
  }

  __device__ __forceinline__ void begin_chunk(float decay) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) state_[r][k] *= decay;
    }
  }

  __device__ __forceinline__ void add_tokens(const unsigned char* B, const unsigned char* x,
                                             const float* factors, int ntokens) {
#pragma unroll 4
    for (int j = 0; j < ntokens; ++j) {
      const float factor = factors[j];
      float b[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r += 2) {
        const float2 pair = read_pair<float>(B, j, first_row_ + r);
        b[r] = pair.x;
        b[r + 1] = pair.y;
      }
      const float4 row =
          *reinterpret_cast<const float4*>(x + SharedTile<float>::offset(j, first_column_));
      const float weighted[4] = {factor * row.x, factor * row.y, factor * row.z, factor * row.w};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int k = 0; k < 4; ++k) state_[r][k] += b[r] * weighted[k];
      }
    }
  }

  __device__ __forceinline__ void end_chunk() {}

 private:
  static constexpr int kThreadColumns = kTile / 4;
  static constexpr int kRows = kTile / (kTileThreads / kThreadColumns);  // of a thread

  const int first_row_ = static_cast<int>(threadIdx.x) / kThreadColumns * kRows;
  const int first_column_ = static_cast<int>(threadIdx.x) % kThreadColumns * 4;
  float state_[kRows][4];
};

}  // namespace adder::cuda
