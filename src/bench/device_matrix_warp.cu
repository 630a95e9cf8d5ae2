// Tile → warp → lane: every warp multiplies the same 64 × 32 by 32 × 32 elements, 4 × 4 products of
// 16 × 8 with two steps of depth each, from registers: 64 for sums, 48 for operands. 16 warps to a
// multiprocessor; what bounds it is the rate at which a warp can issue products.

#include "bench/device_matrix.h"
#include "cuda/check.h"

namespace adder::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2;  // to a multiprocessor
constexpr int kColumns = 32;
constexpr int kDepth = 32;
constexpr int kRowTiles = MatrixKernel::kRows / 16;
constexpr int kColumnTiles = kColumns / 8;
constexpr int kDepthSteps = kDepth / 16;

// d (16 × 8) += a (16 × 16) · b (16 × 8)
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The elements (row, column) and the one after it of a matrix with rows of kDepth.
__device__ __forceinline__ unsigned pair_at(const bf16* matrix, int row, int column) {
  return *reinterpret_cast<const unsigned*>(matrix + row * kDepth + column);
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    multiply_kernel(const bf16* a, const bf16* b, float* d, int iterations) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  unsigned a_pairs[kRowTiles][kDepthSteps][4];
  unsigned b_pairs[kColumnTiles][kDepthSteps][2];
  float sums[kRowTiles][kColumnTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kDepthSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        a_pairs[i][step][part] =
            pair_at(a, 16 * i + g + 8 * (part % 2), 16 * step + 2 * t + 8 * (part / 2));
      }
    }
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        b_pairs[j][step][part] = pair_at(b, 8 * j + g, 16 * step + 2 * t + 8 * part);
      }
    }
  }

  for (int iteration = 0; iteration < iterations; ++iteration) {
#pragma unroll
    for (int step = 0; step < kDepthSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          multiply(sums[i][j], a_pairs[i][step], b_pairs[j][step]);
        }
      }
    }
  }

  // All warps have the same result; all are asked for it, so that none is left out.
  const bool writes = blockIdx.x == 0 && threadIdx.x < 32;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int row = 16 * i + g + 8 * (part / 2);
        if (writes) d[row * kColumns + 8 * j + 2 * t + part % 2] = sums[i][j][part];
      }
    }
  }
}

void launch(const bf16* a, const bf16* b, float* d, int iterations, int multiprocessors,
            cuda::Stream stream) {
  multiply_kernel<<<kBlocks * multiprocessors, kThreads, 0, stream>>>(a, b, d, iterations);
  cuda::check_launch("to launch the matrix benchmark");
}

}  // namespace

const MatrixKernel& warp_matrix_kernel() {
  static constexpr MatrixKernel kKernel{"mma", kColumns, kDepth, kBlocks * kThreads / 32, launch};
  return kKernel;
}

}  // namespace adder::bench
