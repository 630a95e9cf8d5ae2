#include <algorithm>

#include "core/ceil_div.h"
#include "ops/causal_conv1d/cuda_kernel.cuh"

namespace adder::cuda::conv {
namespace {

// How many tokens a warp walks through: few enough for two rounds of all warps that fit the device,
// but not so few that the width - 1 rows before a run are a large share of it. Sequences shorter
// than that are better spread over warps.
std::int64_t choose_run_tokens(std::int64_t ntokens, std::int64_t nsequences,
                               std::int64_t warps_per_row, std::int64_t resident_warps) {
  constexpr std::int64_t kRounds = 2;
  constexpr std::int64_t kFewTokens = 8;
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;
  const std::int64_t runs = std::max<std::int64_t>(1, kRounds * resident_warps / warps_per_row);
  const std::int64_t least = std::clamp<std::int64_t>(ntokens / nsequences, 1, kFewTokens);
  return std::clamp(ceil_div(ntokens, runs), least, kMostTokens);
}

template <int V, int kWidth, typename T>
void launch_kernels(Params<T> p, int multiprocessors, Stream stream) {
  const std::int64_t warps_per_row = ceil_div(p.channels, kWarpSize * V);
  p.warps_per_row = static_cast<std::uint32_t>(warps_per_row);
  p.run_tokens = choose_run_tokens(p.ntokens, p.nsequences, warps_per_row,
                                   std::int64_t{multiprocessors} * kBlocks<V> * kWarps);
  const std::int64_t nruns = ceil_div(p.ntokens, p.run_tokens);
  // Behind padding, a run may need the incoming state of a sequence that began long before.
  p.save_states = p.state != nullptr && (p.seq_idx == nullptr || nruns == 1);
  const auto blocks = static_cast<unsigned>(ceil_div(nruns * warps_per_row, kWarps));
  launch_after_previous("to launch causal_conv1d", tokens_kernel<T, V, kWidth>, blocks, kThreads,
                        stream, p);
  if (p.state != nullptr && !p.save_states) {
    const auto state_blocks = static_cast<unsigned>(ceil_div(p.nsequences * warps_per_row, kWarps));
    launch_after_previous("to launch causal_conv1d's update of the states",
                          states_kernel<T, V, kWidth>, state_blocks, kThreads, stream, p);
  }
}

template <int kWidth, typename T>
void launch_width(const Params<T>& p, bool vectorized, int multiprocessors, Stream stream) {
  if constexpr (kWidth <= 4) {
    if (vectorized) return launch_kernels<kConvVector<T>, kWidth>(p, multiprocessors, stream);
  }
  launch_kernels<1, kWidth>(p, multiprocessors, stream);
}

}  // namespace

template <typename T>
void launch(Params<T> params, int width, bool vectorized, int multiprocessors, Stream stream) {
  switch (width) {
    case 2:
      return launch_width<2>(params, vectorized, multiprocessors, stream);
    case 3:
      return launch_width<3>(params, vectorized, multiprocessors, stream);
    case 4:
      return launch_width<4>(params, vectorized, multiprocessors, stream);
    case 5:
      return launch_width<5>(params, vectorized, multiprocessors, stream);
    case 6:
      return launch_width<6>(params, vectorized, multiprocessors, stream);
    case 7:
      return launch_width<7>(params, vectorized, multiprocessors, stream);
    default:
      return launch_width<8>(params, vectorized, multiprocessors, stream);
  }
}

template void launch(Params<float>, int, bool, int, Stream);
template void launch(Params<bf16>, int, bool, int, Stream);
template void launch(Params<f16>, int, bool, int, Stream);

}  // namespace adder::cuda::conv
