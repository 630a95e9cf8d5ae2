#include "cuda/launch.cuh"
#include "ops/compute_out/cuda_kernel.cuh"

namespace adder::cuda {

template <typename A>
void launch_out(const OutParams& params, std::int64_t slots, Stream stream) {
  using Tile = OutTile<A>;
  launch("to launch compute_out", out_kernel<Tile>,
         slots * params.ngroups * params.blocks_per_group, kTileThreads, sizeof(OutShared<Tile>),
         stream, params);
}

template void launch_out<float>(const OutParams&, std::int64_t, Stream);
template void launch_out<Tf32>(const OutParams&, std::int64_t, Stream);
template void launch_out<bf16>(const OutParams&, std::int64_t, Stream);
template void launch_out<f16>(const OutParams&, std::int64_t, Stream);

}  // namespace adder::cuda
