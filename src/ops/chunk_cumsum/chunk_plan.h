#pragma once

// How the tokens of a batch are cut into chunks. Chunks never cross a sequence: each lies inside
// one packed sequence, one run of equal seq_idx, and between padding tokens, which belong to no
// chunk at all. So the operations on chunks know nothing of packing, resets and padding, and no
// prefix sum spans two sequences.
//
// On a CUDA device the host cannot look at seq_idx, and there may be as many runs as tokens. There
// chunks are cut at the bounds of sequences alone, and what seq_idx says is written beside them,
// token by token, as the number of the segment: operations keep the segments of a chunk apart.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "adder/cuda_stream.h"
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
  /// (nchunks, chunk_size), only on a CUDA device, empty without seq_idx. How often the state
  /// restarts in the chunk up to this token (this one included): tokens of equal numbers belong
  /// together, those of number 0 continue the state before the chunk, those of the last number make
  /// the state after it. Padding and what lies past the chunk's length has ~number, which is
  /// negative.
  std::span<const std::int32_t> segments = {};
  /// Where the arrays lie. On a CUDA device chunks at the end may be unused: of length 0 and past
  /// the last row.
  Device device = {};

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

/// Throws adder::Error (naming `op`) unless the arguments are as documented and in memory of
/// `where`. Values of cu_seqlens on a CUDA device are not looked at.
void validate(std::string_view op, const ChunkPlanArgs& args, const Device& where = {});

/// Extents of the plan's arrays.
struct ChunkPlanSize {
  std::int64_t nchunks;
  std::int64_t nsequences;
};
ChunkPlanSize chunk_plan_size(const ChunkPlanArgs& args);

/// Writes the plan into `chunks` (nchunks) and `first_chunk` (nsequences + 1), which it refers to.
ChunkPlan make_chunk_plan(const ChunkPlanArgs& args, Chunk* chunks, std::int64_t* first_chunk);

/// Throws adder::Error (naming `op`) unless the plan is in memory of `where`, every chunk lies
/// inside (batch, seqlen), none overlaps another, they are in order, and those of each sequence are
/// where `first_chunk` says. Of a plan on a CUDA device only the extents are checked; kernels leave
/// out chunks that do not lie inside (batch, seqlen).
void check_plan(std::string_view op, const ChunkPlan& plan, std::int64_t batch, std::int64_t seqlen,
                const Device& where = {});

namespace cuda {
/// The most that a plan of these arguments may need, whatever the index tensors hold: seqlen /
/// chunk_size + nsequences chunks for packed sequences. `nsequences` is exact.
ChunkPlanSize chunk_plan_size(const ChunkPlanArgs& args);

/// Bytes of memory for a plan: 40 for a chunk, and with seq_idx 4 for a token.
std::size_t chunk_plan_bytes(const ChunkPlanArgs& args);

/// Makes the plan in `memory` of the current device, which it refers to. Bad offsets in cu_seqlens
/// give a plan all the same: they are clamped to [0, seqlen], one that decreases is taken for that
/// before it, and tokens before the first or after the last are in no chunk.
ChunkPlan make_chunk_plan(const ChunkPlanArgs& args, std::span<std::byte> memory, Stream stream);
}  // namespace cuda

}  // namespace adder
