#pragma once

// What the parts of the fused Hopper kernel share: its parameters, its shared memory, and which
// part of the problem a block works on. See hopper_kernel.cuh for the whole.

#include <cstdint>

#include "cuda/hopper.cuh"
#include "ops/ssd_forward/hopper_launch.h"

namespace adder::cuda::hopper {

constexpr int kTileBytes = kChunk * 128;
constexpr int kThreads = 128 * (1 + kHeads);
constexpr int kConsumerWarps = 4 * kHeads;
constexpr int kMaxStages = 4;

// 2^-160 is zero in float32. The floor keeps prefix sums small, so that after a token that forgets
// everything the differences of later ones are still exact to 2^-11.
constexpr float kMinLogDecay = -160.0F;

struct Strides {
  std::int64_t batch, token, head;
};

struct Params {
  CUtensorMap x, B, C, y;  // boxes: x, y 64 × 1 × 64 tokens; B, C 64 × 1 × 64 / cluster tokens
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
  const void* y_so_far;  // y itself if it is to be added to, or null
  Strides y_strides;
  const float* initial_states;  // or null
  Strides initial_strides;      // sequence, channel (as token), head
  float* final_states;          // or null
  Strides final_strides;
  // (units of all batches and groups, segments, 8 kSlices, 128 threads): the state before each
  // segment, as fragments. The first kernel leaves the end state of a segment, from zero, in the
  // place of the next one. Null with one segment.
  float4* segment_states;
  float* segment_decays;  // (units, segments): log2 of the decay over a segment
  int batch, seqlen, segment_tokens, nsegments;
  int headdim, dstate;
  int heads_per_group, parts_per_head;  // parts: 64 channels each
  int blocks_per_group;
  int cluster;  // blocks: divides blocks_per_group
};

template <int kSlices, bool kOutputs>
struct Layout {
  static constexpr int kBcBytes = (kOutputs ? 2 : 1) * kSlices * kTileBytes;
  /// Small states leave room for two state tiles and two y tiles a head, so that a chunk needs one
  /// barrier; else y takes the place of x.
  static constexpr bool kOverlap = kSlices <= 2;
  static constexpr int kStateTiles = kOverlap ? 2 : 1;
  static constexpr int kBcStages = kSlices == 1 || !kOutputs ? 4 : 2;
  static constexpr int kXStages = kSlices == 1 || !kOutputs ? 4 : kSlices == 4 ? 2 : 3;
  /// Room for the weights of x; without it, every thread computes those that it needs.
  static constexpr bool kStoreWeights = kSlices < 4 || !kOutputs;
};

template <int kSlices, bool kOutputs>
struct Shared {
  using L = Layout<kSlices, kOutputs>;
  unsigned char states[kHeads][kOutputs ? L::kStateTiles : 1]
                      [kOutputs ? kSlices * kTileBytes : 1024];
  unsigned char bc[L::kBcStages][L::kBcBytes];  // B slices, then C slices
  unsigned char x[L::kXStages][kHeads][kTileBytes];
  unsigned char y[kOutputs && L::kOverlap ? kHeads : 1][2]
                 [kOutputs && L::kOverlap ? kTileBytes : 8];
  float skip[kHeads][kColumns];                // D
  float sums[L::kXStages][kHeads][kChunk];     // s
  float offsets[L::kXStages][kHeads][kChunk];  // t
  float weights[L::kStoreWeights ? L::kXStages : 1][L::kStoreWeights ? kHeads : 1]
               [L::kStoreWeights ? kChunk : 1];  // 2^(s_last - t)
  Barrier bc_full[L::kBcStages];
  Barrier bc_empty[L::kBcStages];
  Barrier x_full[L::kXStages][kHeads];
  Barrier x_empty[L::kXStages][kHeads];
};

/// What a block works on.
struct Place {
  int batch, group, segment;
  int first_unit;  // of the group: heads × parts
  int first_token, nchunks;
  int end_token;  // of the sequence: tokens from here on do not exist
};

__device__ inline Place place_of_block(const Params& p) {
  Place place;
  place.group = static_cast<int>(blockIdx.x) / p.blocks_per_group;
  place.first_unit = static_cast<int>(blockIdx.x) % p.blocks_per_group * kHeads;
  place.segment = static_cast<int>(blockIdx.y);
  place.batch = static_cast<int>(blockIdx.z);
  place.first_token = place.segment * p.segment_tokens;
  place.end_token = p.seqlen;
  const int end = min(place.first_token + p.segment_tokens, p.seqlen);
  place.nchunks = (end - place.first_token + kChunk - 1) / kChunk;
  return place;
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

}  // namespace adder::cuda::hopper
