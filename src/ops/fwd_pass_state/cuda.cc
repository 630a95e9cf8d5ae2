#include <algorithm>

#include "cuda/device.h"
#include "cuda/dispatch.h"
#include "cuda/layout.h"
#include "ops/fwd_pass_state/cuda_kernel.h"

namespace adder::cuda {
namespace {

TokenStrides token_strides(const ConstTensorView& view) {
  return {view.stride(0), view.stride(1), view.stride(2)};
}

StateStrides state_strides(const ConstTensorView& view) {
  return {view.stride(0), view.stride(1), view.stride(2)};
}

WalkParams make_params(const FwdPassStateArgs& args, const ChunkWindow& window,
                       const StateCarry& carry) {
  constexpr std::uintptr_t kPairBytes = 8;
  WalkParams p{};
  p.plan = device_plan(args.plan, args.x.dim(0), args.x.dim(1));
  p.window = window;
  p.x = args.x.data;
  p.x_strides = token_strides(args.x);
  p.x_aligned = rows_aligned(args.x);
  p.B = args.B.data;
  p.B_strides = token_strides(args.B);
  p.B_aligned = rows_aligned(args.B);
  p.dt = args.dt.as<float>();
  p.dA_cumsum = args.dA_cumsum.as<float>();
  if (args.initial_states.defined()) {
    p.initial_states = args.initial_states.as<float>();
    p.initial_strides = state_strides(args.initial_states);
  }
  if (args.final_states.defined()) {
    p.final_states = args.final_states.as<float>();
    p.final_strides = state_strides(args.final_states);
  }
  p.carry_in = carry.in;
  p.carry_out = carry.out;
  p.states = args.states.as<float>();
  p.states_aligned = reinterpret_cast<std::uintptr_t>(p.states) % kPairBytes == 0;
  p.nheads = static_cast<int>(args.x.dim(2));
  p.heads_per_group = static_cast<int>(args.x.dim(2) / args.B.dim(2));
  p.headdim = static_cast<int>(args.x.dim(3));
  p.columns = static_cast<int>(padded_headdim(args.x.dim(3)));
  p.dstate = static_cast<int>(args.B.dim(3));
  return p;
}

std::int64_t large_tiles_of(std::int64_t n) { return (n + kLargeStateTile - 1) / kLargeStateTile; }

}  // namespace

void launch_fwd_pass_state(const FwdPassStateArgs& args, const ChunkWindow& window,
                           const StateCarry& carry, Stream stream) {
  const WalkParams p = make_params(args, window, carry);
  // Chains are at most as many as sequences and as chunks. Small tiles only where large ones leave
  // multiprocessors without work.
  const std::int64_t chains = std::min(window.count, args.plan.nsequences()) * p.nheads;
  const std::int64_t blocks = chains * large_tiles_of(p.dstate) * large_tiles_of(p.columns);
  const bool large = blocks >= properties(args.x.device.index).multiprocessors;
  visit_arithmetic(args.x.dtype, args.allow_tf32,
                   [&]<typename A>(TypeTag<A>) { launch_walk<A>(p, large, stream); });
}

void launch_empty_sequences(const FwdPassStateArgs& args, Stream stream) {
  if (!args.final_states.defined()) return;
  launch_unchanged(make_params(args, {0, 0}, {}), args.plan.first_chunk.data(), stream);
}

void fwd_pass_state(const FwdPassStateArgs& args, Stream stream) {
  validate(args);
  check_current("fwd_pass_state", "x", args.x);
  launch_fwd_pass_state(args, {0, args.plan.nchunks()}, {}, stream);
  launch_empty_sequences(args, stream);
}

}  // namespace adder::cuda
