// chunk_cumsum, fwd_pass_state and compute_out in one walk over the chunks of a sequence, so that
// states, C·Bᵀ, decays and widened tiles stay in a thread's own caches. (Run one after the other
// over the whole input, the three operations write and read nchunks states per head: 6 MB and 6 MB
// for 512 tokens of 24 heads of 64 × 128.)
//
// A task is a block of heads of one group of one sequence. They share the widened B and C and the
// product C·Bᵀ of each chunk. A head's arithmetic does not depend on the block it is in.

#include <algorithm>

#include "core/ceil_div.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/kernels.h"
#include "ops/compute_out/compute_out.h"
#include "ops/compute_out/kernels.h"
#include "ops/fwd_pass_state/tiles.h"
#include "ops/ssd_forward/ssd_forward.h"

namespace adder::cpu {
namespace {

// Tiles of 64 tokens of a head stay in L1 and L2. Longer chunks would only add work: products
// inside a chunk grow with its length, those with the state do not.
constexpr std::int64_t kMaxChunk = 64;
// States of a block of heads, which each chunk reads and writes: a quarter of an L2 cache of 1 MB.
constexpr std::int64_t kStateBytes = 256 * 1024;

struct Shape {
  std::int64_t nheads, headdim, columns, ngroups, dstate, chunk_size, nchunks, nsequences;
  std::int64_t heads_per_block, blocks_per_group;
};

ChunkPlanArgs plan_args(const SsdForwardArgs& args) {
  return {args.x.dim(0), args.x.dim(1), std::min(args.chunk_size, kMaxChunk), args.cu_seqlens,
          args.seq_idx};
}

Shape shape_of(const SsdForwardArgs& args, int nthreads) {
  Shape s{};
  s.nheads = args.x.dim(2);
  s.headdim = args.x.dim(3);
  s.columns = padded_headdim(s.headdim);
  s.ngroups = args.B.dim(2);
  s.dstate = args.B.dim(3);
  s.chunk_size = std::min(args.chunk_size, kMaxChunk);
  const ChunkPlanSize size = chunk_plan_size(plan_args(args));
  s.nchunks = size.nchunks;
  s.nsequences = size.nsequences;
  // As few blocks as keep the states in cache and give every thread as many as the others.
  const std::int64_t group_heads = s.nheads / s.ngroups;
  const std::int64_t groups = std::max<std::int64_t>(1, s.nsequences * s.ngroups);
  const std::int64_t wanted = (nthreads + groups - 1) / groups;
  const std::int64_t state_bytes = 4 * s.dstate * s.columns;
  const std::int64_t cached = std::max<std::int64_t>(4, kStateBytes / state_bytes);
  const std::int64_t most = std::min(cached, (group_heads + wanted - 1) / wanted);
  const std::int64_t blocks = std::min(group_heads, round_up(ceil_div(group_heads, most), wanted));
  s.heads_per_block = (group_heads + blocks - 1) / blocks;
  s.blocks_per_group = (group_heads + s.heads_per_block - 1) / s.heads_per_block;
  return s;
}

struct Scratch {
  float* B;
  float* C;
  float* scores;
  float* x;
  float* weighted_x;
  float* weights;
  float* decays;
  float* dt;
  float* sums;
  float* states;  // (heads_per_block, dstate, columns)
};

Scratch take_scratch(WorkspaceCutter& cutter, const Shape& s) {
  const std::int64_t width = s.chunk_size;
  return {.B = cutter.take<float>(s.dstate * padded(width)),
          .C = cutter.take<float>(width * padded(s.dstate)),
          .scores = cutter.take<float>(width * padded(width)),
          .x = cutter.take<float>(width * s.columns),
          .weighted_x = cutter.take<float>(width * s.columns),
          .weights = cutter.take<float>(width * padded(width)),
          .decays = cutter.take<float>(padded(width)),
          .dt = cutter.take<float>(width),
          .sums = cutter.take<float>(2 * width),
          .states = cutter.take<float>(s.heads_per_block * s.dstate * s.columns)};
}

struct PlanMemory {
  Chunk* chunks;
  std::int64_t* first_chunk;
};

PlanMemory take_plan(WorkspaceCutter& cutter, const Shape& s) {
  return {.chunks = cutter.take<Chunk>(s.nchunks),
          .first_chunk = cutter.take<std::int64_t>(s.nsequences + 1)};
}

// One block of heads of one sequence, chunk by chunk.
class Block {
 public:
  Block(const SsdForwardArgs& args, const ChunkPlan& plan, const Shape& shape,
        const Scratch& scratch, std::int64_t sequence, std::int64_t group)
      : args_(args),
        plan_(plan),
        s_(shape),
        scratch_(scratch),
        sequence_(sequence),
        group_(group) {}

  void run(std::int64_t first_head, std::int64_t end_head) const {
    for (std::int64_t head = first_head; head < end_head; ++head) {
      load_state(args_.initial_states, sequence_, head, s_.dstate, s_.headdim,
                 state(head - first_head));
    }
    const std::int64_t end = plan_.first_chunk[sequence_ + 1];
    bool zero_state = !args_.initial_states.defined();
    for (std::int64_t c = plan_.first_chunk[sequence_]; c < end; ++c) {
      const Chunk& chunk = plan_.chunks[c];
      share(chunk);
      const bool last = c + 1 == end && !args_.final_states.defined();
      for (std::int64_t head = first_head; head < end_head; ++head) {
        float* own = state(head - first_head);
        const void* next_x = head + 1 < end_head ? row_pointer(args_.x, chunk, head + 1) : nullptr;
        advance(chunk, head, zero_state || chunk.restarts ? nullptr : own, last ? nullptr : own,
                next_x);
      }
      zero_state = false;
    }
    for (std::int64_t head = first_head; head < end_head; ++head) {
      store_state(state(head - first_head), s_.dstate, s_.headdim, args_.final_states, sequence_,
                  head);
    }
  }

 private:
  float* state(std::int64_t i) const { return scratch_.states + i * s_.dstate * s_.columns; }

  // What the heads of the group have in common.
  void share(const Chunk& chunk) const {
    const FwdPassStateKernels& tiles = fwd_pass_state_kernels();
    tiles.widen_transposed(row_pointer(args_.B, chunk, group_), args_.B.stride(1), args_.B.dtype,
                           chunk.length, s_.dstate, scratch_.B);
    tiles.widen(row_pointer(args_.C, chunk, group_), args_.C.stride(1), args_.C.dtype, chunk.length,
                s_.dstate, scratch_.C);
    compute_out_kernels().scores({.length = chunk.length,
                                  .dstate = s_.dstate,
                                  .stride = padded(chunk.length),
                                  .C = scratch_.C,
                                  .C_stride = padded(s_.dstate),
                                  .B = scratch_.B,
                                  .scores = scratch_.scores});
  }

  // Outputs of one head, and its state after the chunk. `before` null means zero; `after` null
  // means that nobody asks. `next_x` is x of the head after this one, or null.
  void advance(const Chunk& chunk, std::int64_t head, const float* before, float* after,
               const void* next_x) const {
    const FwdPassStateKernels& tiles = fwd_pass_state_kernels();
    const float* dt_raw = args_.dt.as<float>() + chunk.row * args_.dt.stride(0) +
                          chunk.begin * args_.dt.stride(1) + head * args_.dt.stride(2);
    const float* high = scratch_.sums;
    const float* low = scratch_.sums + s_.chunk_size;
    chunk_cumsum_kernels().tile(
        {.dt_raw = dt_raw,
         .dt_raw_stride = args_.dt.stride(1),
         .length = chunk.length,
         .width = chunk.length,
         .A = args_.A.as<float>()[head],
         .dt_bias = args_.dt_bias.defined() ? args_.dt_bias.as<float>()[head] : 0.0F,
         .softplus = args_.dt_softplus,
         .dt_min = args_.dt_min,
         .dt_max = args_.dt_max,
         .dt = scratch_.dt,
         .high = scratch_.sums,
         .low = scratch_.sums + s_.chunk_size});
    tiles.widen(row_pointer(args_.x, chunk, head), args_.x.stride(1), args_.x.dtype, chunk.length,
                s_.headdim, scratch_.x);
    compute_out_kernels().out({.length = chunk.length,
                               .dstate = s_.dstate,
                               .headdim = s_.headdim,
                               .columns = s_.columns,
                               .stride = padded(chunk.length),
                               .scores = scratch_.scores,
                               .dt = scratch_.dt,
                               .high = high,
                               .low = low,
                               .C = scratch_.C,
                               .C_stride = padded(s_.dstate),
                               .x = scratch_.x,
                               .state = before,
                               .D = D_of_head(args_.D, head),
                               .D_has_headdim = args_.D.rank == 2,
                               .z = args_.z.defined() ? row_pointer(args_.z, chunk, head) : nullptr,
                               .z_stride = args_.z.defined() ? args_.z.stride(1) : 0,
                               .y = row_pointer(args_.y, chunk, head),
                               .y_stride = args_.y.stride(1),
                               .dtype = args_.x.dtype,
                               .next_x = next_x,
                               .next_x_stride = args_.x.stride(1),
                               .weights = scratch_.weights,
                               .decays = scratch_.decays});
    if (after == nullptr) return;
    tiles.update({.length = chunk.length,
                  .dstate = s_.dstate,
                  .columns = s_.columns,
                  .dt = scratch_.dt,
                  .high = high,
                  .low = low,
                  .x = scratch_.x,
                  .B = scratch_.B,
                  .B_stride = padded(chunk.length),
                  .state = before,
                  .next_state = after,
                  .weighted_x = scratch_.weighted_x});
  }

  const SsdForwardArgs& args_;
  const ChunkPlan& plan_;
  const Shape& s_;
  const Scratch& scratch_;
  std::int64_t sequence_;
  std::int64_t group_;
};

}  // namespace

std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args, int nthreads) {
  check_host("ssd_forward", "x", args.x);
  validate(args);
  check_nthreads("ssd_forward", nthreads);
  const Shape shape = shape_of(args, nthreads);
  WorkspaceCutter cutter;
  take_plan(cutter, shape);
  for (int t = 0; t < nthreads; ++t) take_scratch(cutter, shape);
  return cutter.bytes();
}

void ssd_forward(const SsdForwardArgs& args, std::span<std::byte> workspace, ThreadPool& pool) {
  check_workspace("ssd_forward", workspace, ssd_forward_workspace_bytes(args, pool.nthreads()));
  check_decay("ssd_forward", args.A);
  const Shape shape = shape_of(args, pool.nthreads());
  WorkspaceCutter cutter(workspace);
  const PlanMemory memory = take_plan(cutter, shape);
  const ChunkPlan plan = make_chunk_plan(plan_args(args), memory.chunks, memory.first_chunk);
  const std::int64_t group_heads = shape.nheads / shape.ngroups;
  const std::int64_t blocks = shape.ngroups * shape.blocks_per_group;
  for_each_task(pool, shape.nsequences * blocks, [&](std::int64_t slot, std::int64_t task) {
    const Scratch scratch = scratch_of_slot(
        cutter, slot, [&](WorkspaceCutter& own) { return take_scratch(own, shape); });
    const std::int64_t group = task % blocks / shape.blocks_per_group;
    const std::int64_t first = task % shape.blocks_per_group * shape.heads_per_block;
    const std::int64_t end = std::min(first + shape.heads_per_block, group_heads);
    Block(args, plan, shape, scratch, task / blocks, group)
        .run(group * group_heads + first, group * group_heads + end);
  });
  zero_padding(plan, args.y, pool);
}

}  // namespace adder::cpu
