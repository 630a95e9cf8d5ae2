#include "ops/chunk_cumsum/chunk_plan.h"

#include <algorithm>

#include "core/check.h"

namespace adder {
namespace {

// Calls `emit_chunk(chunk)` for every chunk in order, and `emit_sequence()` before those of each
// sequence.
template <typename EmitSequence, typename EmitChunk>
void walk(const ChunkPlanArgs& args, EmitSequence&& emit_sequence, EmitChunk&& emit_chunk) {
  const bool packed = args.cu_seqlens.defined();
  const std::int32_t* offsets = packed ? args.cu_seqlens.as<std::int32_t>() : nullptr;
  const std::int64_t nsequences = packed ? args.cu_seqlens.dim(0) - 1 : args.batch;
  for (std::int64_t sequence = 0; sequence < nsequences; ++sequence) {
    emit_sequence();
    const std::int64_t row = packed ? 0 : sequence;
    const std::int64_t end = packed ? offsets[sequence + 1] : args.seqlen;
    std::int64_t begin = packed ? offsets[sequence] : 0;
    if (!args.seq_idx.defined()) {
      for (; begin < end; begin += args.chunk_size) {
        emit_chunk(Chunk{row, begin, std::min(args.chunk_size, end - begin), sequence, false});
      }
      continue;
    }
    const auto index_of = [&](std::int64_t t) {
      return args.seq_idx
          .as<std::int32_t>()[row * args.seq_idx.stride(0) + t * args.seq_idx.stride(1)];
    };
    std::int32_t current = -1;  // none yet
    while (begin < end) {
      const std::int32_t index = index_of(begin);
      if (index < 0) {
        ++begin;
        continue;
      }
      const std::int64_t limit = std::min(args.chunk_size, end - begin);
      std::int64_t length = 1;
      while (length < limit && index_of(begin + length) == index) ++length;
      emit_chunk(Chunk{row, begin, length, sequence, current >= 0 && index != current});
      current = index;
      begin += length;
    }
  }
}

}  // namespace

void validate(std::string_view op, const ChunkPlanArgs& args, const Device& where) {
  check(args.chunk_size >= 1, "{}: chunk_size is {}, expected at least 1", op, args.chunk_size);
  if (args.cu_seqlens.defined()) {
    check(args.batch == 1, "{}: batch is {}, expected 1 with cu_seqlens", op, args.batch);
    check_cu_seqlens(op, args.cu_seqlens, args.seqlen, where);
  }
  if (args.seq_idx.defined()) {
    check_shape(op, "seq_idx", args.seq_idx, {args.batch, args.seqlen}, where);
    check_dtype(op, "seq_idx", args.seq_idx, {DType::i32});
  }
}

ChunkPlanSize chunk_plan_size(const ChunkPlanArgs& args) {
  ChunkPlanSize size{0, 0};
  walk(
      args, [&] { ++size.nsequences; }, [&](const Chunk&) { ++size.nchunks; });
  return size;
}

ChunkPlan make_chunk_plan(const ChunkPlanArgs& args, Chunk* chunks, std::int64_t* first_chunk) {
  std::size_t nchunks = 0;
  std::size_t nsequences = 0;
  walk(
      args, [&] { first_chunk[nsequences++] = static_cast<std::int64_t>(nchunks); },
      [&](const Chunk& chunk) { chunks[nchunks++] = chunk; });
  first_chunk[nsequences] = static_cast<std::int64_t>(nchunks);
  return {.chunks = {chunks, nchunks},
          .first_chunk = {first_chunk, nsequences + 1},
          .chunk_size = args.chunk_size};
}

void check_plan(std::string_view op, const ChunkPlan& plan, std::int64_t batch, std::int64_t seqlen,
                const Device& where) {
  check(plan.chunk_size >= 1, "{}: the plan's chunk_size is {}, expected at least 1", op,
        plan.chunk_size);
  check(plan.device == where, "{}: the plan is in {}, expected it in {}", op,
        place_string(plan.device), place_string(where));
  if (where.type == DeviceType::cuda) {
    check(!plan.first_chunk.empty(), "{}: the plan's first_chunk is empty, expected nsequences + 1",
          op);
    const auto tokens = static_cast<std::size_t>(plan.nchunks() * plan.chunk_size);
    check(plan.segments.empty() || plan.segments.size() == tokens,
          "{}: the plan has {} segment numbers, expected none or {}", op, plan.segments.size(),
          tokens);
    return;
  }
  check(!plan.first_chunk.empty() && plan.first_chunk.front() == 0 &&
            plan.first_chunk.back() == plan.nchunks() &&
            std::is_sorted(plan.first_chunk.begin(), plan.first_chunk.end()),
        "{}: the plan's first_chunk does not run from 0 to its {} chunks", op, plan.nchunks());
  std::int64_t row = 0;
  std::int64_t done = 0;  // tokens of the row that earlier chunks reach to
  for (std::int64_t s = 0; s < plan.nsequences(); ++s) {
    for (std::int64_t c = plan.first_chunk[s]; c < plan.first_chunk[s + 1]; ++c) {
      const Chunk& chunk = plan.chunks[c];
      check(chunk.sequence == s && chunk.row >= 0 && chunk.row < batch && chunk.begin >= 0 &&
                chunk.length >= 1 && chunk.length <= plan.chunk_size &&
                chunk.begin <= seqlen - chunk.length,
            "{}: chunk {} of the plan has row {}, tokens [{}, {}) and sequence {}, expected "
            "sequence {} and at most {} tokens inside ({}, {})",
            op, c, chunk.row, chunk.begin, chunk.begin + chunk.length, chunk.sequence, s,
            plan.chunk_size, batch, seqlen);
      check(chunk.row > row || (chunk.row == row && chunk.begin >= done),
            "{}: chunk {} of the plan begins at row {}, token {}, expected none before row {}, "
            "token {}",
            op, c, chunk.row, chunk.begin, row, done);
      row = chunk.row;
      done = chunk.begin + chunk.length;
    }
  }
}

}  // namespace adder
