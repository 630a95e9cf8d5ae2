#pragma once

// What the parts of the fused Hopper kernel share: its parameters, its shared memory, and which
// part of the problem a block works on. See hopper_kernel.cuh for the whole.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/hopper.cuh"
#include "ops/ssd_forward/hopper_launch.h"

namespace adder::cuda::hopper {

constexpr int kTileBytes = kChunk * 128;
/// Chunks that are looked at at once for a head's memory: 128 threads, four tokens each.
constexpr int kLookBack = 8;

// 2^-160 is zero in float32. The floor keeps prefix sums small, so that after a token that forgets
// everything the differences of later ones are still exact to 2^-11.
constexpr float kMinLogDecay = -160.0F;

/// Instead of a segment's decay: nobody needs its end state, and nothing is left of it after the
/// next segment.
constexpr float kUnneeded = -INFINITY;

/// Chunks before a token: those of which something is left there.
struct Memory {
  int chunks;
  bool bounded;  // older ones are forgotten; else nothing is known of them
};

struct Strides {
  std::int64_t batch, token, head;
};

struct Params {
  CUtensorMap x, B, C, y;  // boxes: 64 × 1 × 64 tokens
  const void* dt;
  Strides dt_strides;
  bool dt_is_float;
  DtOptions dt_options;
  const float* A;
  const float* dt_bias;  // or null
  const float* D;        // or null
  bool D_per_channel;
  const void* z;  // or null
  Strides z_strides;
  bool add_to_y;                // to what a pass before left there
  const float* initial_states;  // or null
  Strides initial_strides;      // sequence, channel (as token), head
  float* final_states;          // or null
  Strides final_strides;
  bool final_states_in_pairs;  // even counts and strides, aligned: pairs can be written at once
  // (units of all batches and groups, segments, 8 kSlices, 128 threads): the state before each
  // segment, as fragments. The first kernel leaves the end state of a segment, from zero, in the
  // place of the next one. Null if there is no such kernel.
  float4* segment_states;
  float* segment_decays;  // (units, segments): log2 of the decay over a segment, or kUnneeded
  SegmentStart start;
  int batch, seqlen, segment_tokens, nsegments;
  int headdim, dstate;
  int heads_per_group, parts_per_head;  // parts: 64 channels each
  int ngroups, blocks_per_group;
  // With sequences laid end to end: chunks of a block; and of each unit whether its state where the
  // sequence is cut is there, in the place of that before a segment.
  int part_chunks;
  unsigned* cuts;
  unsigned* tickets;  // parts that blocks have taken
};

/// How a block divides an SM. setmaxnreg makes registers of consumers and producers of those at
/// launch: 61,440 for four heads, 64,512 or more for fewer.
template <int kSlices, bool kOutputs>
struct Layout {
  static constexpr int kHeads = heads_of_block(kSlices);
  static constexpr int kThreads = 128 * (1 + kHeads);
  static constexpr int kConsumerRegisters = kHeads == 2   ? 232
                                            : kHeads == 3 ? 152
                                            : kOutputs    ? 112
                                                          : 104;
  static constexpr int kProducerRegisters = kHeads == 2   ? 40
                                            : kHeads == 3 ? 48
                                            : kOutputs    ? 32
                                                          : 64;
  static constexpr int kStages = kOutputs ? 2 : 4;
  static constexpr int kSumsAhead = kHeads == 4 && kOutputs ? 1 : 2;  ///< chunks of dt
  static constexpr int kBcBytes = (kOutputs ? 2 : 1) * kSlices * kTileBytes;
  /// Small states leave room for a tile of y a head; else y takes the place of x.
  static constexpr bool kOwnY = kSlices <= 2;
  /// With two tiles the next state is stored while this one is multiplied.
  static constexpr int kStateTiles = kSlices == 1 ? 2 : 1;
  /// Room for what x and the scores are multiplied by; without it, every thread computes what it
  /// needs.
  static constexpr bool kStoreColumns = kSlices < 4 && kOutputs;
  static constexpr bool kStoreWeights = kSlices < 4;  // the same with outputs and without
};

/// What a block works on.
struct Place {
  int batch, group, segment;
  int first_unit;  // of the group: heads × parts
  int first_token, nchunks;
  int nwarm;            // chunks of those that only lead to the state that the segment begins with
  bool is_handed_over;  // that state has been computed before
  bool is_cut_before, is_cut_after;  // another block has the tokens before, or behind
  int end_token;                     // of the sequence: tokens from here on do not exist
};

template <int kSlices, bool kOutputs>
struct Shared {
  using L = Layout<kSlices, kOutputs>;
  static constexpr int kHeads = L::kHeads;
  static constexpr int kStages = L::kStages;
  using Floats = float[kHeads][kChunk];

  unsigned char states[kHeads][kOutputs ? L::kStateTiles : 1]
                      [kOutputs ? kSlices * kTileBytes : 1024];
  unsigned char bc[kStages][L::kBcBytes];  // B slices, then C slices
  unsigned char x[kStages][kHeads][kTileBytes];
  unsigned char y[kOutputs && L::kOwnY ? kHeads : 1][kOutputs && L::kOwnY ? kTileBytes : 16];
  float skip[kHeads][kColumns];  // D of each channel, or of the head
  Floats sums[kStages];          // s
  Floats offsets[kStages];       // t
  std::conditional_t<L::kStoreWeights, Floats[kStages], char> weights;  // 2^(s_last - t)
  // 2^(s_b - t), b the last token of the sixteen that a token belongs to.
  std::conditional_t<L::kStoreColumns, Floats[kStages], char> columns;
  Barrier bc_full[kStages];
  Barrier bc_empty[kStages];
  Barrier x_full[kStages][kHeads];  // the sums too
  Barrier x_empty[kStages][kHeads];
  Barrier y_free[kHeads];
  float chunk_totals[kHeads][kLookBack];
  Memory memories[kHeads];
  Place place;
  // With sequences laid end to end:
  Barrier all;  // threads of the block
  bool has_place;
  unsigned part;
};

__device__ inline Place place_of_block(const Params& p, int heads) {
  Place place;
  place.group = static_cast<int>(blockIdx.x) / p.blocks_per_group;
  place.first_unit = static_cast<int>(blockIdx.x) % p.blocks_per_group * heads;
  place.segment = static_cast<int>(blockIdx.y);
  place.batch = static_cast<int>(blockIdx.z);
  place.first_token = place.segment * p.segment_tokens;
  place.end_token = p.seqlen;
  const int end = min(place.first_token + p.segment_tokens, p.seqlen);
  place.nchunks = (end - place.first_token + kChunk - 1) / kChunk;
  place.nwarm = 0;
  // The first segment has no need to wait for its state, but where its y takes the place of x that
  // the first kernel still reads, or the last segment might replace the initial state.
  place.is_handed_over =
      p.nsegments > 1 && (place.segment > 0 || p.start == SegmentStart::handed_over);
  place.is_cut_before = false;
  place.is_cut_after = false;
  return place;
}

/// Piece `index` of a part of the sequences laid end to end, in the order of its work:
/// first of the sequence that it does not finish, for whose state another block waits; at last the
/// rest of one begun by the block before. False if there is no such piece. A sequence is no longer
/// than a block's part, so that it is cut once at most.
__device__ inline bool place_of_piece(const Params& p, int heads, unsigned part, int index,
                                      Place& place) {
  const int length = (p.seqlen + kChunk - 1) / kChunk;  // chunks of a sequence
  const int chains = p.batch * p.ngroups * p.blocks_per_group;
  const std::int64_t begin = std::int64_t{part} * p.part_chunks;
  const std::int64_t end = min(begin + p.part_chunks, std::int64_t{chains} * length);
  if (begin >= end) return false;
  const int first = static_cast<int>(begin / length);
  const int last = static_cast<int>((end - 1) / length);
  const int skipped = static_cast<int>(begin % length);
  const int count = static_cast<int>(end - std::int64_t{last} * length);
  const int inherited = skipped > 0 ? 1 : 0;
  const int unfinished = count < length ? 1 : 0;
  const int whole = last - unfinished - (first + inherited) + 1;
  if (index >= unfinished + whole + inherited) return false;

  int chain = first + inherited + index - unfinished;
  int chunk = 0;
  place.nchunks = length;
  place.is_cut_after = index < unfinished;
  place.is_cut_before = index >= unfinished + whole;
  if (place.is_cut_after) {
    chain = last;
    place.nchunks = count;
  } else if (place.is_cut_before) {
    chain = first;
    chunk = skipped;
    place.nchunks = length - skipped;
  }
  const int block = chain % (p.ngroups * p.blocks_per_group);
  place.batch = chain / (p.ngroups * p.blocks_per_group);
  place.group = block / p.blocks_per_group;
  place.first_unit = block % p.blocks_per_group * heads;
  place.segment = 0;
  place.first_token = chunk * kChunk;
  place.end_token = p.seqlen;
  place.nwarm = 0;
  place.is_handed_over = false;
  return true;
}

/// The head of a unit, counted in the tensor, and its first channel.
struct Unit {
  bool exists;
  int index;  // in the group
  int head, channel;
};

__device__ inline Unit unit_of(const Params& p, const Place& place, int h) {
  Unit unit;
  unit.index = place.first_unit + h;
  unit.exists = unit.index < p.heads_per_group * p.parts_per_head;
  unit.head = place.group * p.heads_per_group + unit.index / p.parts_per_head;
  unit.channel = unit.index % p.parts_per_head * kColumns;
  return unit;
}

/// Among the threads of a unit's warpgroup.
__device__ inline void sync_unit(int h) { sync_threads_of(1 + h, 128); }

/// Of a unit and a segment, in what is kept of each.
__device__ inline std::int64_t segment_index(const Params& p, const Place& place, const Unit& unit,
                                             int segment) {
  const std::int64_t units = p.heads_per_group * p.parts_per_head;
  const std::int64_t groups = std::int64_t{place.batch} * p.ngroups + place.group;
  return (groups * units + unit.index) * p.nsegments + segment;
}

}  // namespace adder::cuda::hopper
