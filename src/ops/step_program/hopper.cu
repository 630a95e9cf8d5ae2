// Work: that of the operations: 2 bytes and a multiply-add for each weight and sequence, 8 bytes
// and 5 flops for each element of a state. Bound: device memory; 1.27 ms for a token of mamba2-2.7b
// at the 4.28 TB/s of an H200. What kernels of their own would add is their beginnings and ends,
// in which memory is idle, some 4 µs each for 3 a layer. Here weights go on arriving meanwhile, as
// long as there is room for them: 185 KB a multiprocessor, what 6 µs bring.
//
// Map: a block per multiprocessor, all there at once. One warp copies the block's rows of each
// weight into a ring of stages; eight warps compute, each a fixed eighth of the columns of all
// rows. Between two operations all blocks wait for one another (a counter in device memory), having
// asked before for what they need that no operation writes. A layer of Mamba-2 is three operations;
// with nothing to compute each would still take about 1.9 µs: 0.8 for the blocks to meet, 0.5 for
// what one wrote to come from the L2 cache, the rest for sums over the block. Instructions count as
// well: each operation's are fetched anew, so that short code is faster than unrolled loops.
//
// Shared memory: all of it. Arithmetic: products of bf16 with sums in float32, v in float32 being
// the sum of two or three bf16 numbers; the rest as in the operations. Sums are in a fixed order: a
// sequence gives the same bits each time, whatever the others are. Registers (nvcc 13.0, sm_90a):
// 167 at most, no spills.

#include "cuda/check.h"
#include "ops/step_program/product.cuh"
#include "ops/step_program/states.cuh"

namespace adder::cuda::program {
namespace {

constexpr int kBlockThreads = kThreads + kWarpSize;

template <typename X>
struct Fetched {
  static constexpr int kVectors = static_cast<int>(sizeof(Instruction<X>) / sizeof(uint4));
  static_assert(sizeof(Instruction<X>) % sizeof(uint4) == 0 && kVectors <= kThreads);
};

template <typename X, int kBatch>
__device__ __forceinline__ void run(const Instruction<X>& instruction, const Shared& shared,
                                    Product<X, kBatch>& product, const Grid& grid, bool is_first) {
  switch (instruction.kind) {
    case Kind::linear:
      return run_linear<X, kBatch>(instruction.linear, shared, product, grid, is_first);
    case Kind::ssd:
      return run_heads<X>(instruction.heads, grid, is_first);
    case Kind::scan:
      return run_channels<X>(instruction.channels, grid, is_first);
  }
}

template <typename X, int kBatch>
__global__ void __launch_bounds__(kBlockThreads, 1)
    program_kernel(const __grid_constant__ Params<X> p) {
  extern __shared__ __align__(128) char memory[];
  __shared__ Barrier barriers[2 * kMaxStages];
  __shared__ uint4 fetched[2][Fetched<X>::kVectors];
  const Layout& layout = p.layout;
  const Ring ring(barriers, memory + layout.stages, layout.nstages);
  const int me = static_cast<int>(threadIdx.x);
  const auto* instructions = reinterpret_cast<const uint4*>(p.instructions);
  if (me < Fetched<X>::kVectors) fetched[0][me] = instructions[me];
  if (me == 0) ring.init();
  __syncthreads();
  if (warp_index() == kWarps) return copy_weights(p, ring);

  const Shared shared{reinterpret_cast<float*>(memory + layout.sums),
                      reinterpret_cast<float*>(memory + layout.slots), memory + layout.v,
                      layout.v_row, layout.round_tiles};
  Grid grid(p.arrivals);
  Product<X, kBatch> product(shared, ring);
#pragma unroll 1
  for (int i = 0; i < p.count; ++i) {
    const bool fetches = i + 1 < p.count && me < Fetched<X>::kVectors;
    uint4 next{};
    if (fetches) next = instructions[(i + 1) * Fetched<X>::kVectors + me];
    run<X, kBatch>(*reinterpret_cast<const Instruction<X>*>(fetched[i % 2]), shared, product, grid,
                   i == 0);
    if (fetches) fetched[(i + 1) % 2][me] = next;
    grid.arrive();
  }
}

template <typename X, int kBatch>
void launch_batch(const Params<X>& params, int blocks, std::int64_t shared_bytes, Stream stream) {
  constexpr std::string_view kDoing = "to launch a step's program";
  const auto kernel = program_kernel<X, kBatch>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        kDoing);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, params), kDoing);
}

}  // namespace

template <typename X>
void launch(const Params<X>& params, int batch, int blocks, std::int64_t shared_bytes,
            Stream stream) {
  switch (kernel_batch(batch)) {
    case 1:
      return launch_batch<X, 1>(params, blocks, shared_bytes, stream);
    case 2:
      return launch_batch<X, 2>(params, blocks, shared_bytes, stream);
    default:
      return launch_batch<X, 4>(params, blocks, shared_bytes, stream);
  }
}

template void launch(const Params<float>&, int, int, std::int64_t, Stream);
template void launch(const Params<bf16>&, int, int, std::int64_t, Stream);

}  // namespace adder::cuda::program
