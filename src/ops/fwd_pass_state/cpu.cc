#include <algorithm>

#include "core/workspace.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/fwd_pass_state/kernels.h"
#include "ops/fwd_pass_state/tiles.h"

namespace adder::cpu {
namespace {

struct Scratch {
  float* x;
  float* weighted_x;
  float* B;
  float* state;
};

Scratch take_scratch(WorkspaceCutter& cutter, const FwdPassStateArgs& args) {
  const std::int64_t columns = padded_headdim(args.x.dim(3));
  const std::int64_t dstate = args.B.dim(3);
  return {.x = cutter.take<float>(args.plan.chunk_size * columns),
          .weighted_x = cutter.take<float>(args.plan.chunk_size * columns),
          .B = cutter.take<float>(dstate * padded(args.plan.chunk_size)),
          .state = cutter.take<float>(dstate * columns)};
}

// One head of one sequence, from its first chunk to its last.
void pass(const FwdPassStateArgs& args, std::int64_t sequence, std::int64_t head,
          const Scratch& scratch) {
  const FwdPassStateKernels& kernels = fwd_pass_state_kernels();
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  const std::int64_t columns = padded_headdim(headdim);
  const std::int64_t dstate = args.B.dim(3);
  const std::int64_t group = head / (nheads / args.B.dim(2));
  const std::int64_t nchunks = args.plan.nchunks();
  const std::int64_t width = args.plan.chunk_size;

  load_state(args.initial_states, sequence, head, dstate, headdim, scratch.state);
  for (std::int64_t c = args.plan.first_chunk[sequence]; c < args.plan.first_chunk[sequence + 1];
       ++c) {
    const Chunk& chunk = args.plan.chunks[c];
    float* before = args.states.as<float>() + (c * nheads + head) * dstate * columns;
    chunk.restarts ? std::fill_n(before, dstate * columns, 0.0F)
                   : std::copy_n(scratch.state, dstate * columns, before);
    kernels.widen(row_pointer(args.x, chunk, head), args.x.stride(1), args.x.dtype, chunk.length,
                  headdim, scratch.x);
    kernels.widen_transposed(row_pointer(args.B, chunk, group), args.B.stride(1), args.B.dtype,
                             chunk.length, dstate, scratch.B);
    const float* sums = args.dA_cumsum.as<float>() + (head * nchunks + c) * 2 * width;
    kernels.update({.length = chunk.length,
                    .dstate = dstate,
                    .columns = columns,
                    .dt = args.dt.as<float>() + (head * nchunks + c) * width,
                    .high = sums,
                    .low = sums + width,
                    .x = scratch.x,
                    .B = scratch.B,
                    .B_stride = padded(chunk.length),
                    .state = before,
                    .next_state = scratch.state,
                    .weighted_x = scratch.weighted_x});
  }
  store_state(scratch.state, dstate, headdim, args.final_states, sequence, head);
}

}  // namespace

std::size_t fwd_pass_state_workspace_bytes(const FwdPassStateArgs& args, int nthreads) {
  check_host("fwd_pass_state", "x", args.x);
  validate(args);
  check_nthreads("fwd_pass_state", nthreads);
  WorkspaceCutter cutter;
  for (int t = 0; t < nthreads; ++t) take_scratch(cutter, args);
  return cutter.bytes();
}

void fwd_pass_state(const FwdPassStateArgs& args, std::span<std::byte> workspace,
                    ThreadPool& pool) {
  check_workspace("fwd_pass_state", workspace,
                  fwd_pass_state_workspace_bytes(args, pool.nthreads()));
  const std::int64_t nheads = args.x.dim(2);
  for_each_task(pool, args.plan.nsequences() * nheads, [&](std::int64_t slot, std::int64_t task) {
    const Scratch scratch =
        scratch_of_slot(WorkspaceCutter(workspace), slot,
                        [&](WorkspaceCutter& cutter) { return take_scratch(cutter, args); });
    pass(args, task / nheads, task % nheads, scratch);
  });
}

}  // namespace adder::cpu
