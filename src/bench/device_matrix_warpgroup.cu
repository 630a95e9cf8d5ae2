// Tile → warpgroup: two warpgroups of a block multiply the same 64 × 64 by 64 × 256 elements in
// four steps of depth, both operands from shared memory (40 KB, rows of 128 bytes in the 128-byte
// swizzle: block b of row r lies at b ^ (r % 8)), sums in 128 registers. One block to a
// multiprocessor. A product reads 10 KB of shared memory in the 128 cycles it takes, less than the
// 128 bytes a cycle that there are, so the tensor cores bound it.

#include <cstdint>

#include "bench/device_matrix.h"
#include "cuda/check.h"
#include "cuda/hopper.cuh"

namespace adder::bench {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kRows = MatrixKernel::kRows;
constexpr int kColumns = 256;
constexpr int kDepth = 64;  // a row of 128 bytes
constexpr int kStepBytes = 32;

// Copies rows of kDepth elements to a swizzled tile.
__device__ void fill_tile(uint4* tile, const bf16* matrix, int nrows) {
  constexpr int kBlocks = 8;  // of 16 bytes in a row
  for (int i = static_cast<int>(threadIdx.x); i < nrows * kBlocks; i += kThreads) {
    const int row = i / kBlocks;
    const int block = i % kBlocks;
    tile[cuda::swizzled(row, block) / 16] = reinterpret_cast<const uint4*>(matrix)[i];
  }
}

// clang-format off
#define ADDER_OPERANDS                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "              \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "              \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "              \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "              \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "              \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "  \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ADDER_SUMS_8(i)                                                                            \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]),              \
  "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define ADDER_SUMS_32(i)                                                                           \
  ADDER_SUMS_8(i), ADDER_SUMS_8((i) + 8), ADDER_SUMS_8((i) + 16), ADDER_SUMS_8((i) + 24)
// clang-format on

// d (64 × 256) += a (64 × 16) · b (16 × 256)
__device__ __forceinline__ void multiply(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" ADDER_OPERANDS
      "}, %128, %129, p, 1, 1, 0, 0;\n}\n"
      : ADDER_SUMS_32(0), ADDER_SUMS_32(32), ADDER_SUMS_32(64), ADDER_SUMS_32(96)
      : "l"(a), "l"(b));
}

#undef ADDER_OPERANDS
#undef ADDER_SUMS_8
#undef ADDER_SUMS_32

__global__ void __launch_bounds__(kThreads, 1)
    multiply_kernel(const bf16* a, const bf16* b, float* d, int iterations) {
  __shared__ alignas(1024) uint4 a_tile[kRows * 8];
  __shared__ alignas(1024) uint4 b_tile[kColumns * 8];
  fill_tile(a_tile, a, kRows);
  fill_tile(b_tile, b, kColumns);
  cuda::fence_async_shared();
  __syncthreads();

  float sums[128] = {};
  const std::uint64_t a_operand = cuda::describe_tile(cuda::to_shared(a_tile));
  const std::uint64_t b_operand = cuda::describe_tile(cuda::to_shared(b_tile));
  for (int iteration = 0; iteration < iterations; ++iteration) {
    cuda::begin_products();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      const std::uint64_t offset = cuda::tile_offset(step * kStepBytes);
      multiply(sums, a_operand + offset, b_operand + offset);
    }
    cuda::commit_products();
    cuda::wait_products<1>();
  }
  cuda::wait_products<0>();

  // All warpgroups have the same result; all are asked for it, so that none is left out.
  const bool writes = blockIdx.x == 0 && threadIdx.x < 128;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
    const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (writes) d[row * kColumns + column] = sums[i];
  }
}

void launch(const bf16* a, const bf16* b, float* d, int iterations, int multiprocessors,
            cuda::Stream stream) {
  multiply_kernel<<<multiprocessors, kThreads, 0, stream>>>(a, b, d, iterations);
  cuda::check_launch("to launch the matrix benchmark");
}

}  // namespace

const MatrixKernel& warpgroup_matrix_kernel() {
  static constexpr MatrixKernel kKernel{"wgmma", kColumns, kDepth, kWarpgroups, launch};
  return kKernel;
}

}  // namespace adder::bench
