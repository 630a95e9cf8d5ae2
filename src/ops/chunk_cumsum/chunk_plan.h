#pragma once

// How the tokens of a batch are cut into chunks. Chunks never cross a sequence: each lies inside
// one packed sequence, one run of equal seq_idx, and between padding tokens, which belong to no
// chunk at all. So the operations on chunks know nothing of packing, resets and padding, and no
// prefix sum spans two sequences.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "adder/tensor_view.h"

namespace adder {

struct Chunk {
  std::int64_t row;       ///< of the batch
  std::int64_t begin;     ///< first token, counted in the row
  std::int64_t length;    ///< tokens, in [1, chunk_size]
  std::int64_t sequence;  ///< whose state it continues
  bool restarts;          ///< the state before it is zero: seq_idx changed
};

/// Chunks are in the order of rows, sequences and tokens. Those of sequence s are
/// [first_chunk[s], first_chunk[s + 1]).
struct ChunkPlan {
  std::span<const Chunk> chunks;
  std::span<const std::int64_t> first_chunk;  ///< (nsequences + 1)
  std::int64_t chunk_size = 0;

  std::int64_t nchunks() const { return static_cast<std::int64_t>(chunks.size()); }
  std::int64_t nsequences() const { return static_cast<std::int64_t>(first_chunk.size()) - 1; }
};

struct ChunkPlanArgs {
  std::int64_t batch = 1;
  std::int64_t seqlen = 0;
  std::int64_t chunk_size = 256;
  /// (nsequences + 1) i32, optional; batch must be 1. Absent: each row is one sequence.
  ConstTensorView cu_seqlens = {};
  /// (batch, seqlen) i32, optional. The state restarts from zero where the value differs from that
  /// of the last token that is not padding; negative values mark padding. The first token that is
  /// not padding continues the initial state.
  ConstTensorView seq_idx = {};
};

/// Throws adder::Error (naming `op`) unless the arguments are as documented.
void validate(std::string_view op, const ChunkPlanArgs& args);

/// Extents of the plan's arrays.
struct ChunkPlanSize {
  std::int64_t nchunks;
  std::int64_t nsequences;
};
ChunkPlanSize chunk_plan_size(const ChunkPlanArgs& args);

/// Writes the plan into `chunks` (nchunks) and `first_chunk` (nsequences + 1), which it refers to.
ChunkPlan make_chunk_plan(const ChunkPlanArgs& args, Chunk* chunks, std::int64_t* first_chunk);

/// Throws adder::Error (naming `op`) unless every chunk lies inside (batch, seqlen), none overlaps
/// another, they are in order, and those of each sequence are where `first_chunk` says.
void check_plan(std::string_view op, const ChunkPlan& plan, std::int64_t batch,
                std::int64_t seqlen);

}  // namespace adder
