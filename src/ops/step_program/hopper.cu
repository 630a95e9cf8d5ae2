// Work: that of the operations: 2 bytes and a multiply-add for each weight and sequence, 8 bytes
// and 5 flops for each element of a state. Bound: device memory; 1.27 ms for a token of mamba2-2.7b
// at the 4.28 TB/s of an H200. What kernels of their own would add is their beginnings and ends,
// in which memory is idle, some 4 µs each for 3 a layer. Here weights go on arriving meanwhile, as
// long as there is room for them: 185 KB a multiprocessor, what 6 µs bring.
//
// Map: a block per multiprocessor, all there at once. One warp copies the block's rows of each
// weight into a ring of stages; eight warps multiply, each a fixed eighth of the columns of all
// rows. Where one instruction reads what another wrote, all blocks wait for one another between
// them (a counter in device memory): 1.9 µs with nothing to compute, of which 0.8 for the blocks to
// meet, 0.5 for what one wrote to come from the L2 cache, the rest for sums over the block; while
// copies are under way, a fence alone takes 2 to 3.
//
// So the layers of Mamba-2 do without, for a single sequence (mixer.cuh, exchange.cuh): results go
// from block to block with a tag in each number, and every block has the residual stream for
// itself. A layer is two instructions, not three: a block steps the states of the channels whose x
// it makes, in three more warps, while the others multiply the rows of z. B, C and dt, some rows a
// block, are made first; states come through the ring. Microseconds of a layer of mamba2-2.7b: with
// three meetings 31, without 27, its bytes alone 20; of mamba2-130m without 9.0, its bytes 2.2.
//
// What is left, in a layer of the former: 5 are waits for numbers of other blocks at its two
// beginnings, while the ring fills and is then full; the products of out_proj, whose weights are
// there by then, take another 3. The multiprocessors run at 1.8 GHz meanwhile (by the counter of
// cycles beside that of time; 1.98 is what the device says). Tried and lost: fewer reads of shared
// memory in those products, 12 down to 9 for two steps (0 to 4 % slower).
//
// Instructions count as well: each operation's are fetched anew, so that short code is faster than
// unrolled loops; and what the warp that copies needs of the next instruction has to be there when
// it is due, or the ring runs empty (2 µs a layer).
//
// Shared memory: all of it. Arithmetic: products of bf16 with sums in float32, v in float32 being
// the sum of two or three bf16 numbers; the rest as in the operations. Sums are in a fixed order: a
// sequence gives the same bits each time, whatever the others are. Registers (nvcc 13.0, sm_90a):
// 168 at most; some 100 bytes are spilled, outside of the loops over a weight's columns.

#include "cuda/check.h"
#include "ops/step_program/mixer.cuh"
#include "ops/step_program/product.cuh"
#include "ops/step_program/states.cuh"

namespace adder::cuda::program {
namespace {

template <typename X>
struct Static {
  Barrier barriers[2 * kMaxStages];
  typename Fetcher<X, kThreads>::Memory of_main;
  typename Fetcher<X, kSideThreads>::Memory of_side;
  typename Fetcher<X, kWarpSize>::Memory of_copies;
};

template <typename X, int kBatch, bool kLinked>
__global__ void __launch_bounds__(kBlockThreads<kLinked>, 1)
    program_kernel(const __grid_constant__ Params<X> p) {
  static_assert(sizeof(Static<X>) <= kStaticBytes);
  extern __shared__ __align__(128) char memory[];
  __shared__ Static<X> fixed;
  const Layout& layout = p.layout;
  const Ring ring(fixed.barriers, memory + layout.stages, layout.nstages);
  const int me = static_cast<int>(threadIdx.x);
  if (me == 0) ring.init();
  __syncthreads();
  if (warp_index() == kWarps) return copy_weights(p, ring, fixed.of_copies);

  const Shared shared{reinterpret_cast<float*>(memory + layout.sums),
                      reinterpret_cast<Channel*>(memory + layout.channels),
                      reinterpret_cast<float*>(memory + layout.slots),
                      memory + layout.v,
                      layout.v_row,
                      layout.round_tiles};
  if constexpr (kLinked) {
    if (warp_index() > kWarps) return Beside<X>(p, shared, ring).run(fixed.of_side);
  }
  Grid grid(p.arrivals);
  const std::uint32_t launches = grid.launches(p.meetings);
  float* residual = p.residuals + blockIdx.x * static_cast<std::size_t>(p.residual_size);
  Product<X, kBatch> product(shared, ring);
  Fetcher<X, kThreads> fetcher(p, fixed.of_main, me);
  sync_threads();
#pragma unroll 1
  for (int i = 0; i < p.count; ++i) {
    const Instruction<X>& instruction = fetcher.get(i);
    const auto go_on = [&] { fetcher.advance(i); };
    if (is_projection(instruction)) {
      run_linear<X, kBatch, kLinked>(
          instruction, shared, product, grid, Exchange<X>(p, instruction.takes_from, launches),
          Exchange<X>(p, instruction.gives_to, launches), residual, go_on);
    } else {
      if (instruction.kind == Kind::ssd) {
        run_heads<X>(instruction.heads, grid, instruction.enters);
      } else {
        run_channels<X>(instruction.channels, grid, instruction.enters);
      }
      go_on();
    }
    if (instruction.leaves) grid.leave();
  }
}

template <typename X, int kBatch, bool kLinked>
void launch_kernel(const Params<X>& params, int blocks, std::int64_t shared_bytes, Stream stream) {
  constexpr std::string_view kDoing = "to launch a step's program";
  const auto kernel = program_kernel<X, kBatch, kLinked>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        kDoing);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kBlockThreads<kLinked>);
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
  // Links there are for a single sequence alone.
  if (params.is_linked) return launch_kernel<X, 1, true>(params, blocks, shared_bytes, stream);
  switch (kernel_batch(batch)) {
    case 1:
      return launch_kernel<X, 1, false>(params, blocks, shared_bytes, stream);
    case 2:
      return launch_kernel<X, 2, false>(params, blocks, shared_bytes, stream);
    default:
      return launch_kernel<X, 4, false>(params, blocks, shared_bytes, stream);
  }
}

template void launch(const Params<float>&, int, int, std::int64_t, Stream);
template void launch(const Params<bf16>&, int, int, std::int64_t, Stream);

}  // namespace adder::cuda::program
