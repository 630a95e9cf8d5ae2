#include "cuda/launch.cuh"
#include "ops/fwd_pass_state/cuda_walk.cuh"

namespace adder::cuda {
namespace {

constexpr int kCopyThreads = 256;

// A sequence without chunks ends with its initial state.
__global__ void __launch_bounds__(kCopyThreads)
    unchanged_kernel(const __grid_constant__ WalkParams p, const std::int64_t* first_chunk) {
  const std::int64_t sequence = blockIdx.x;
  if (first_chunk[sequence] != first_chunk[sequence + 1]) return;
  const std::int64_t head_size = std::int64_t{p.headdim} * p.dstate;
  for (std::int64_t i = threadIdx.x; i < p.nheads * head_size; i += kCopyThreads) {
    const std::int64_t head = i / head_size;
    const std::int64_t row = i % head_size / p.dstate;
    const std::int64_t n = i % p.dstate;
    const auto at = [&](const StateStrides& strides) {
      return sequence * strides.sequence + head * strides.head + row * strides.p + n;
    };
    p.final_states[at(p.final_strides)] =
        p.initial_states == nullptr ? 0.0F : p.initial_states[at(p.initial_strides)];
  }
}

template <typename A, int kTile>
void launch_tiles(WalkParams p, Stream stream) {
  p.n_tiles = static_cast<int>(ceil_div(p.dstate, kTile));
  p.p_tiles = static_cast<int>(ceil_div(p.columns, kTile));
  launch("to launch fwd_pass_state", walk_kernel<StateTile<A, kTile>>,
         p.window.count * p.nheads * p.n_tiles * p.p_tiles, kTileThreads,
         sizeof(WalkShared<ElementOf<A>>), stream, p);
}

}  // namespace

template <typename A>
void launch_walk(WalkParams params, bool large_tiles, Stream stream) {
  large_tiles ? launch_tiles<A, kLargeStateTile>(params, stream)
              : launch_tiles<A, kSmallStateTile>(params, stream);
}

template void launch_walk<float>(WalkParams, bool, Stream);
template void launch_walk<Tf32>(WalkParams, bool, Stream);
template void launch_walk<bf16>(WalkParams, bool, Stream);
template void launch_walk<f16>(WalkParams, bool, Stream);

void launch_unchanged(const WalkParams& params, const std::int64_t* first_chunk, Stream stream) {
  launch("to launch fwd_pass_state's copy of unchanged states", unchanged_kernel,
         params.plan.nsequences, kCopyThreads, 0, stream, params, first_chunk);
}

}  // namespace adder::cuda
