#pragma once

// A tile of a state in registers, kTile (dstate) × kTile (headdim), and what a block of 128 threads
// does with it: S = 2^s S + Σ_j factor_j B_j x_jᵀ over 64 tokens at a time.
//
// A warp owns 16 rows: of all 64 columns, or of 16 of 32. Operand A is factor_j B_jᵀ, scaled on its
// way from shared memory and rounded precisely (two products for bf16, whose digits alone would
// cost the state 1.7e-3); operand B is x. The sum over a chunk begins at zero and is added to S by
// the ordinary, correctly rounded unit: tensor cores round sums towards zero, which would add up
// over the sequence. Floats take six products, or one if tf32 is allowed (see tensor_core.cuh).

#include "cuda/tensor_core.cuh"
#include "ops/fwd_pass_state/tile_operands.cuh"

namespace adder::cuda {

template <typename A, int kTile>
class StateTile {
 public:
  using Element = ElementOf<A>;
  static constexpr int kSize = kTile;
  /// Of a multiprocessor, for which there should be registers.
  static constexpr int kBlocks = sizeof(Element) == 2 ? 4 : 3;

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
    const int pair = (lane & 3) << 1;
#pragma unroll
    for (int k = 0; k < kTileRows; k += 16) {
      if (k >= ntokens) break;
      float2 plain[4];
      TileOperands<A>::load_a_transposed(plain, B, first_row_, k, lane);
      const float2 near = *reinterpret_cast<const float2*>(factors + k + pair);
      const float2 far = *reinterpret_cast<const float2*>(factors + k + pair + 8);
      typename TensorCore<A>::Precise weighted[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factor = i < 2 ? near : far;
        weighted[i] = TensorCore<A>::precise(plain[i].x * factor.x, plain[i].y * factor.y);
      }
#pragma unroll
      for (int i = 0; i < kFragments; i += 2) {
        typename TensorCore<A>::Stored b[4];
        TileOperands<A>::load_b_transposed(b, x, first_column_ + 8 * i, k, lane);
        TensorCore<A>::multiply_precise_a(sum_[i], weighted, b[0], b[1]);
        TensorCore<A>::multiply_precise_a(sum_[i + 1], weighted, b[2], b[3]);
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

}  // namespace adder::cuda
