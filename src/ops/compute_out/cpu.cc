#include <cstring>

#include "ops/compute_out/compute_out.h"
#include "ops/compute_out/kernels.h"
#include "ops/fwd_pass_state/tiles.h"

namespace adder::cpu {
namespace {

struct Scratch {
  float* x;
  float* B;
  float* C;
  float* scores;
  float* weights;
  float* decays;
};

Scratch take_scratch(WorkspaceCutter& cutter, const ComputeOutArgs& args) {
  const std::int64_t width = args.plan.chunk_size;
  const std::int64_t dstate = args.B.dim(3);
  return {.x = cutter.take<float>(width * padded_headdim(args.x.dim(3))),
          .B = cutter.take<float>(dstate * padded(width)),
          .C = cutter.take<float>(width * padded(dstate)),
          .scores = cutter.take<float>(width * padded(width)),
          .weights = cutter.take<float>(width * padded(width)),
          .decays = cutter.take<float>(padded(width))};
}

// All heads of one group of one chunk.
void group_out(const ComputeOutArgs& args, std::int64_t c, std::int64_t group,
               const Scratch& scratch) {
  const ComputeOutKernels& kernels = compute_out_kernels();
  const FwdPassStateKernels& tiles = fwd_pass_state_kernels();
  const Chunk& chunk = args.plan.chunks[c];
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  const std::int64_t columns = padded_headdim(headdim);
  const std::int64_t dstate = args.B.dim(3);
  const std::int64_t stride = padded(chunk.length);
  const std::int64_t width = args.plan.chunk_size;
  const DType dtype = args.x.dtype;

  tiles.widen_transposed(row_pointer(args.B, chunk, group), args.B.stride(1), dtype, chunk.length,
                         dstate, scratch.B);
  tiles.widen(row_pointer(args.C, chunk, group), args.C.stride(1), dtype, chunk.length, dstate,
              scratch.C);
  kernels.scores({.length = chunk.length,
                  .dstate = dstate,
                  .stride = stride,
                  .C = scratch.C,
                  .C_stride = padded(dstate),
                  .B = scratch.B,
                  .scores = scratch.scores});
  const std::int64_t heads_per_group = nheads / args.B.dim(2);
  const std::int64_t end = (group + 1) * heads_per_group;
  for (std::int64_t head = group * heads_per_group; head < end; ++head) {
    const std::int64_t next = head + 1;
    tiles.widen(row_pointer(args.x, chunk, head), args.x.stride(1), dtype, chunk.length, headdim,
                scratch.x);
    const std::int64_t index = head * args.plan.nchunks() + c;
    const float* sums = args.dA_cumsum.as<float>() + index * 2 * width;
    kernels.out({.length = chunk.length,
                 .dstate = dstate,
                 .headdim = headdim,
                 .columns = columns,
                 .stride = stride,
                 .scores = scratch.scores,
                 .dt = args.dt.as<float>() + index * width,
                 .high = sums,
                 .low = sums + width,
                 .C = scratch.C,
                 .C_stride = padded(dstate),
                 .x = scratch.x,
                 .state = args.states.as<float>() + (c * nheads + head) * dstate * columns,
                 .D = D_of_head(args.D, head),
                 .D_has_headdim = args.D.rank == 2,
                 .z = args.z.defined() ? row_pointer(args.z, chunk, head) : nullptr,
                 .z_stride = args.z.defined() ? args.z.stride(1) : 0,
                 .y = row_pointer(args.y, chunk, head),
                 .y_stride = args.y.stride(1),
                 .dtype = dtype,
                 .next_x = next < end ? row_pointer(args.x, chunk, next) : nullptr,
                 .next_x_stride = args.x.stride(1),
                 .weights = scratch.weights,
                 .decays = scratch.decays});
  }
}

}  // namespace

std::size_t compute_out_workspace_bytes(const ComputeOutArgs& args, int nthreads) {
  check_host("compute_out", "x", args.x);
  validate(args);
  check_nthreads("compute_out", nthreads);
  WorkspaceCutter cutter;
  for (int t = 0; t < nthreads; ++t) take_scratch(cutter, args);
  return cutter.bytes();
}

void compute_out(const ComputeOutArgs& args, std::span<std::byte> workspace, ThreadPool& pool) {
  check_workspace("compute_out", workspace, compute_out_workspace_bytes(args, pool.nthreads()));
  const std::int64_t ngroups = args.B.dim(2);
  for_each_task(pool, args.plan.nchunks() * ngroups, [&](std::int64_t slot, std::int64_t task) {
    const Scratch scratch =
        scratch_of_slot(WorkspaceCutter(workspace), slot,
                        [&](WorkspaceCutter& cutter) { return take_scratch(cutter, args); });
    group_out(args, task / ngroups, task % ngroups, scratch);
  });
  zero_padding(args.plan, args.y, pool);
}

void zero_padding(const ChunkPlan& plan, const TensorView& y, ThreadPool& pool) {
  const std::int64_t seqlen = y.dim(1);
  std::int64_t covered = 0;
  for (const Chunk& chunk : plan.chunks) covered += chunk.length;
  if (covered == y.dim(0) * seqlen) return;
  const std::size_t row_bytes = static_cast<std::size_t>(y.dim(3)) * size_of(y.dtype);
  const auto zero = [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t head = 0; head < y.dim(2); ++head) {
        std::memset(row_pointer(y, {row, t, 1, 0, false}, head), 0, row_bytes);
      }
    }
  };
  // Chunks are in the order of rows, and of tokens inside a row.
  pool.parallel_for(y.dim(0), 1, [&](std::int64_t begin, std::int64_t end) {
    auto chunk = std::find_if(plan.chunks.begin(), plan.chunks.end(),
                              [&](const Chunk& c) { return c.row >= begin; });
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t done = 0;
      for (; chunk != plan.chunks.end() && chunk->row == row; ++chunk) {
        zero(row, done, chunk->begin);
        done = chunk->begin + chunk->length;
      }
      zero(row, done, seqlen);
    }
  });
}

}  // namespace adder::cpu
