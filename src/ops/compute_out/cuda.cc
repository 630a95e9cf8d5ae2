#include <algorithm>

#include "core/ceil_div.h"
#include "cuda/device.h"
#include "cuda/dispatch.h"
#include "cuda/layout.h"
#include "ops/compute_out/cuda_kernel.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"

namespace adder::cuda {
namespace {

// Blocks per multiprocessor that keep it busy; heads beyond that share a block, and with it C Bᵀ.
constexpr std::int64_t kBlocksWanted = 8;
constexpr std::int64_t kMostItems = 16;

template <typename Void>
OutTensor<Void> out_tensor(const BasicTensorView<Void>& view) {
  if (!view.defined()) return {};
  return {view.data, view.stride(0), view.stride(1), view.stride(2), rows_aligned(view)};
}

OutParams make_params(const ComputeOutArgs& args, const ChunkWindow& window) {
  OutParams p{};
  p.plan = device_plan(args.plan, args.x.dim(0), args.x.dim(1));
  p.window = window;
  p.x = out_tensor(args.x);
  p.B = out_tensor(args.B);
  p.C = out_tensor(args.C);
  p.z = out_tensor(args.z);
  p.y = out_tensor(args.y);
  p.dt = args.dt.as<float>();
  p.dA_cumsum = args.dA_cumsum.as<float>();
  p.states = args.states.as<float>();
  p.states_aligned = rows_aligned(args.states);
  if (args.D.defined()) p.D = args.D.as<float>();
  p.D_has_headdim = args.D.rank == 2;
  p.nheads = static_cast<int>(args.x.dim(2));
  p.ngroups = static_cast<int>(args.B.dim(2));
  p.headdim = static_cast<int>(args.x.dim(3));
  p.columns = static_cast<int>(padded_headdim(args.x.dim(3)));
  p.dstate = static_cast<int>(args.B.dim(3));
  p.dstate_slices = static_cast<int>(std::max<std::int64_t>(1, ceil_div(p.dstate, kOutTile)));
  p.p_tiles = static_cast<int>(ceil_div(p.headdim, kOutTile));
  p.items = p.nheads / p.ngroups * p.p_tiles;
  return p;
}

}  // namespace

void launch_compute_out(const ComputeOutArgs& args, const ChunkWindow& window, Stream stream) {
  if (args.y.numel() == 0) return;
  OutParams p = make_params(args, window);
  // With no chunk at all, one block per group and run of items still writes the zeros.
  const std::int64_t slots = std::max<std::int64_t>(1, window.count);
  const std::int64_t wanted = kBlocksWanted * properties(args.x.device.index).multiprocessors;
  const std::int64_t share = slots * p.ngroups * p.items / wanted;
  p.items_per_block = static_cast<int>(
      std::clamp<std::int64_t>(share, 1, std::min<std::int64_t>(p.items, kMostItems)));
  p.blocks_per_group = static_cast<int>(ceil_div(p.items, p.items_per_block));
  visit_arithmetic(args.x.dtype, args.allow_tf32,
                   [&]<typename A>(TypeTag<A>) { launch_out<A>(p, slots, stream); });
}

void compute_out(const ComputeOutArgs& args, Stream stream) {
  validate(args);
  check_current("compute_out", "x", args.x);
  launch_compute_out(args, {0, args.plan.nchunks()}, stream);
}

}  // namespace adder::cuda
