// chunk_cumsum, fwd_pass_state and compute_out, window by window of the chunks of all sequences:
// what lies between them takes a bounded part of the device's memory, however long the sequences
// are, and while a window's states are fewer than the L2 cache holds they are read back from there.
// At most one sequence crosses from a window into the next; its state is handed over in a buffer of
// two halves, one read and one written.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "core/workspace.h"
#include "ops/chunk_cumsum/cuda_launch.h"
#include "ops/compute_out/cuda_launch.h"
#include "ops/fwd_pass_state/cuda_launch.h"
#include "ops/ssd_forward/cuda_variants.h"

namespace adder::cuda::general {
namespace {

// Products inside a chunk grow with its length, states between chunks with its inverse: of a state
// of 64 × 128 a chunk of 64 tokens weighs them about equally.
constexpr std::int64_t kChunkSize = 64;
// Of the states of a window. Large enough to hide launches and the ends of kernels, small enough to
// stay a small part of any device's memory.
constexpr std::int64_t kWindowBytes = std::int64_t{64} << 20;

ChunkPlanArgs plan_args(const SsdForwardArgs& args) {
  return {args.x.dim(0), args.x.dim(1), kChunkSize, args.cu_seqlens, args.seq_idx};
}

std::int64_t state_size(const SsdForwardArgs& args) {
  return args.x.dim(2) * args.B.dim(3) * padded_headdim(args.x.dim(3));
}

struct Workspace {
  std::byte* plan;
  std::size_t plan_bytes;
  float* dt;          // (nheads, window, chunk_size)
  float* dA_cumsum;   // (nheads, window, 2, chunk_size)
  float* states;      // (window, nheads, dstate, columns)
  float* carries[2];  // (nheads, dstate, columns) each
};

Workspace take_workspace(WorkspaceCutter& cutter, const SsdForwardArgs& args,
                         const SsdForwardChoice& choice) {
  const std::int64_t window =
      std::min(choice.window_chunks, cuda::chunk_plan_size(plan_args(args)).nchunks);
  const std::int64_t tokens = args.x.dim(2) * window * kChunkSize;
  Workspace w{};
  w.plan_bytes = chunk_plan_bytes(plan_args(args));
  w.plan = cutter.take<std::byte>(static_cast<std::int64_t>(w.plan_bytes));
  w.dt = cutter.take<float>(tokens);
  w.dA_cumsum = cutter.take<float>(2 * tokens);
  w.states = cutter.take<float>(window * state_size(args));
  for (float*& carry : w.carries) carry = cutter.take<float>(state_size(args));
  return w;
}

// The three steps over all windows of one call.
class Steps {
 public:
  Steps(const SsdForwardArgs& args, const ChunkPlan& plan, const Workspace& workspace)
      : args_(args), plan_(plan), w_(workspace) {}

  void run_window(const ChunkWindow& window, const StateCarry& carry, Stream stream) const {
    launch_chunk_cumsum({.dt_raw = args_.dt,
                         .A = args_.A,
                         .dt_bias = args_.dt_bias,
                         .dt_options = {args_.dt_softplus, args_.dt_min, args_.dt_max},
                         .plan = plan_,
                         .dt = array(w_.dt, {nheads(), window.count, kChunkSize}),
                         .dA_cumsum = sums(window)},
                        window, stream);
    launch_fwd_pass_state(state_args(window), window, carry, stream);
    launch_compute_out({.x = args_.x,
                        .B = args_.B,
                        .C = args_.C,
                        .dt = array(w_.dt, {nheads(), window.count, kChunkSize}),
                        .dA_cumsum = sums(window),
                        .states = states(window),
                        .D = args_.D,
                        .z = args_.z,
                        .allow_tf32 = args_.allow_tf32,
                        .plan = plan_,
                        .y = args_.y},
                       window, stream);
  }

  FwdPassStateArgs state_args(const ChunkWindow& window) const {
    return {.x = args_.x,
            .B = args_.B,
            .dt = array(w_.dt, {nheads(), window.count, kChunkSize}),
            .dA_cumsum = sums(window),
            .initial_states = args_.initial_states,
            .allow_tf32 = args_.allow_tf32,
            .plan = plan_,
            .states = states(window),
            .final_states = args_.final_states};
  }

 private:
  std::int64_t nheads() const { return args_.x.dim(2); }
  TensorView array(float* data, std::initializer_list<std::int64_t> dims) const {
    return {data, DType::f32, dims, args_.x.device};
  }
  TensorView sums(const ChunkWindow& window) const {
    return array(w_.dA_cumsum, {nheads(), window.count, 2, kChunkSize});
  }
  TensorView states(const ChunkWindow& window) const {
    return array(w_.states,
                 {window.count, nheads(), args_.B.dim(3), padded_headdim(args_.x.dim(3))});
  }

  const SsdForwardArgs& args_;
  const ChunkPlan& plan_;
  const Workspace& w_;
};

}  // namespace

SsdForwardChoice choose(const SsdForwardArgs& args) {
  const std::int64_t nchunks =
      std::max<std::int64_t>(1, cuda::chunk_plan_size(plan_args(args)).nchunks);
  const std::int64_t most = std::max<std::int64_t>(1, kWindowBytes / (4 * state_size(args)));
  const std::int64_t windows = (nchunks + most - 1) / most;  // of equal size
  return {.variant = SsdForwardVariant::general,
          .window_chunks = (nchunks + windows - 1) / windows};
}

std::string refuses(const SsdForwardArgs&, const SsdForwardChoice& choice) {
  if (choice.window_chunks >= 1) return {};
  return fmt::format("window_chunks is {}, expected at least 1", choice.window_chunks);
}

std::size_t workspace_bytes(const SsdForwardArgs& args, const SsdForwardChoice& choice) {
  WorkspaceCutter cutter;
  take_workspace(cutter, args, choice);
  return cutter.bytes();
}

void run(const SsdForwardArgs& args, const SsdForwardChoice& choice, std::span<std::byte> workspace,
         Stream stream) {
  WorkspaceCutter cutter(workspace);
  const Workspace w = take_workspace(cutter, args, choice);
  const ChunkPlan plan = make_chunk_plan(plan_args(args), {w.plan, w.plan_bytes}, stream);
  const Steps steps(args, plan, w);
  bool odd = false;
  for (std::int64_t first = 0; first < plan.nchunks(); first += choice.window_chunks) {
    const std::int64_t count = std::min(choice.window_chunks, plan.nchunks() - first);
    steps.run_window({first, count}, {w.carries[odd], w.carries[!odd]}, stream);
    odd = !odd;
  }
  if (args.cu_seqlens.defined() || plan.nchunks() == 0) {
    launch_empty_sequences(steps.state_args({0, 0}), stream);
  }
}

std::vector<SsdForwardChoice> candidates(const SsdForwardArgs& args) {
  // Powers of two up to what takes all chunks at once, so that neighbouring shapes can agree on
  // one, within four times the memory of the built-in choice.
  const std::int64_t nchunks =
      std::max<std::int64_t>(1, cuda::chunk_plan_size(plan_args(args)).nchunks);
  const std::int64_t most = std::max<std::int64_t>(1, kWindowBytes / state_size(args));
  constexpr int kSteps = 6;
  std::vector<SsdForwardChoice> out;
  auto window = std::bit_floor(static_cast<std::uint64_t>(most));
  window = std::min(window, std::bit_ceil(static_cast<std::uint64_t>(nchunks)));
  for (int i = 0; i < kSteps && window > 0; ++i, window /= 2) {
    out.push_back({.variant = SsdForwardVariant::general,
                   .window_chunks = static_cast<std::int64_t>(window)});
  }
  return out;
}

}  // namespace adder::cuda::general
