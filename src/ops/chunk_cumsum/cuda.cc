#include <algorithm>

#include "core/dispatch.h"
#include "core/workspace.h"
#include "cuda/device.h"
#include "ops/chunk_cumsum/cuda_kernel.h"

namespace adder::cuda {
namespace {

std::int64_t chunks_of(std::int64_t tokens, std::int64_t chunk_size) {
  return (tokens + chunk_size - 1) / chunk_size;
}

PlanMemory take_plan(WorkspaceCutter& cutter, const ChunkPlanArgs& args,
                     const ChunkPlanSize& size) {
  PlanMemory memory{};
  memory.chunks = cutter.take<Chunk>(size.nchunks);
  memory.first_chunk = cutter.take<std::int64_t>(size.nsequences + 1);
  if (args.cu_seqlens.defined()) memory.bounds = cutter.take<std::int32_t>(size.nsequences + 1);
  if (args.seq_idx.defined()) {
    memory.segments = cutter.take<std::int32_t>(size.nchunks * args.chunk_size);
    memory.last_index = cutter.take<std::int32_t>(size.nchunks);
  }
  return memory;
}

}  // namespace

ChunkPlanSize chunk_plan_size(const ChunkPlanArgs& args) {
  validate("chunk_plan", args, {DeviceType::cuda, current_device()});
  if (!args.cu_seqlens.defined()) {
    return {args.batch * chunks_of(args.seqlen, args.chunk_size), args.batch};
  }
  const std::int64_t nsequences = args.cu_seqlens.dim(0) - 1;
  return {std::min(args.seqlen, args.seqlen / args.chunk_size + nsequences), nsequences};
}

std::size_t chunk_plan_bytes(const ChunkPlanArgs& args) {
  const ChunkPlanSize size = cuda::chunk_plan_size(args);
  WorkspaceCutter cutter;
  take_plan(cutter, args, size);
  return cutter.bytes();
}

ChunkPlan make_chunk_plan(const ChunkPlanArgs& args, std::span<std::byte> memory, Stream stream) {
  check_workspace("chunk_plan", memory, chunk_plan_bytes(args));
  const ChunkPlanSize size = cuda::chunk_plan_size(args);
  WorkspaceCutter cutter(memory);
  PlanParams p{};
  p.memory = take_plan(cutter, args, size);
  p.nchunks = size.nchunks;
  p.nsequences = size.nsequences;
  p.batch = args.batch;
  p.seqlen = args.seqlen;
  p.chunk_size = args.chunk_size;
  p.chunks_per_row = chunks_of(args.seqlen, args.chunk_size);
  if (args.cu_seqlens.defined()) p.cu_seqlens = args.cu_seqlens.as<std::int32_t>();
  if (args.seq_idx.defined()) {
    p.seq_idx = args.seq_idx.as<std::int32_t>();
    p.row_stride = args.seq_idx.stride(0);
    p.token_stride = args.seq_idx.stride(1);
  }
  launch_plan(p, stream);
  const auto nchunks = static_cast<std::size_t>(size.nchunks);
  const auto tokens = static_cast<std::size_t>(size.nchunks * args.chunk_size);
  return {.chunks = {p.memory.chunks, nchunks},
          .first_chunk = {p.memory.first_chunk, static_cast<std::size_t>(size.nsequences) + 1},
          .chunk_size = args.chunk_size,
          .segments = {p.memory.segments, args.seq_idx.defined() ? tokens : 0},
          .device = {DeviceType::cuda, current_device()}};
}

void launch_chunk_cumsum(const ChunkCumsumArgs& args, const ChunkWindow& window, Stream stream) {
  CumsumParams p{};
  p.plan = device_plan(args.plan, args.dt_raw.dim(0), args.dt_raw.dim(1));
  p.window = window;
  p.dt_raw = args.dt_raw.data;
  p.row_stride = args.dt_raw.stride(0);
  p.token_stride = args.dt_raw.stride(1);
  p.head_stride = args.dt_raw.stride(2);
  p.A = args.A.as<float>();
  if (args.dt_bias.defined()) p.dt_bias = args.dt_bias.as<float>();
  p.options = args.dt_options;
  p.nheads = args.dt_raw.dim(2);
  p.dt = args.dt.as<float>();
  p.dA_cumsum = args.dA_cumsum.as<float>();
  visit_float(args.dt_raw.dtype, [&]<typename T>(TypeTag<T>) { launch_cumsum<T>(p, stream); });
}

void chunk_cumsum(const ChunkCumsumArgs& args, Stream stream) {
  validate(args);
  check_current("chunk_cumsum", "dt_raw", args.dt_raw);
  launch_chunk_cumsum(args, {0, args.plan.nchunks()}, stream);
}

}  // namespace adder::cuda
