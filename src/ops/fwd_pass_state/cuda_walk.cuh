#pragma once

// The walk along the chunks of a sequence with a tile of the state in registers.
//
// Work for T tokens of a head: 2 T dstate headdim flops; bytes T (headdim + dstate) of x and B in,
// T dstate headdim / chunk_size floats of states out. In bf16 with chunks of 64 and a state of
// 64 × 128: 16,384 flops and 900 bytes a token, so the states that are written make it bound by
// memory (on the H200 0.2 ns a token and head at 4.3 TB/s, 0.02 ns of tensor cores). With few
// chains (sequences × heads) the latency of a step counts instead: then tiles of 32 × 32 give four
// times the blocks, each with a quarter of the products.
//
//   block    one tile of one head's state, from the sequence's first chunk in the window to its
//   last step     64 tokens: B and x tiles and scalars come in with asynchronous copies while the
//   step
//            before is computed (two stages); 64 threads turn scalars into factors; then 128
//            threads multiply (see cuda_state_tile.cuh)
//   shared   16-bit: 2 · (8 + 8 + 1) KB; f32: 2 · (17 + 17 + 1) KB
//
// Registers (nvcc 13.0, sm_90; nothing spills): bf16 123 and 103 (tiles of 64 and 32), f16 118 and
// 104: four blocks of a multiprocessor; f32 168 and 114 (tf32 167 and 110): three.

#include "cuda/math.cuh"
#include "ops/fwd_pass_state/cuda_kernel.h"
#include "ops/fwd_pass_state/cuda_state_tile.cuh"

namespace adder::cuda {

template <typename T>
struct WalkStage {
  alignas(128) unsigned char B[SharedTile<T>::kBytes];
  alignas(128) unsigned char x[SharedTile<T>::kBytes];
  TokenScalars tokens;
  // Of the chunk's last token:
  float last_high, last_low;
  std::int32_t last_segment;
};

template <typename T>
struct WalkShared {
  WalkStage<T> stages[2];
  float factors[kTileRows];
};

/// What is to be done with 64 tokens.
struct WalkStep {
  std::int64_t slot;  ///< of the chunk
  int ntokens;
  bool chunk_begins, chunk_ends, restarts;
};

/// Where a block is: 64 tokens of a chunk.
struct WalkPlace {
  std::int64_t c;      ///< of the plan
  std::int64_t first;  ///< token of the chunk
  Chunk chunk;
  Chunk next;  ///< read ahead

  __device__ int ntokens() const {
    return static_cast<int>(min(std::int64_t{kTileRows}, chunk.length - first));
  }
  __device__ WalkStep step(const WalkParams& p) const {
    return {c - p.window.first, ntokens(), first == 0, chunk_ends(), chunk.restarts};
  }
  __device__ bool chunk_ends() const { return first + kTileRows >= chunk.length; }
  __device__ bool sequence_goes_on() const {
    return next.length > 0 && next.sequence == chunk.sequence;
  }
  /// To the next tokens; false if there are none in the window.
  __device__ bool advance(const WalkParams& p) {
    if (!chunk_ends()) {
      first += kTileRows;
      return true;
    }
    if (!sequence_goes_on() || c + 1 >= p.window.first + p.window.count) return false;
    ++c;
    first = 0;
    chunk = next;
    next = load_chunk(p.plan, c + 1);
    return true;
  }
};

template <typename Tile>
class Walk {
 public:
  using T = typename Tile::Element;

  __device__ Walk(const WalkParams& p, WalkShared<T>& shared, int head, int tile)
      : p_(p),
        shared_(shared),
        head_(head),
        n_(tile % p.n_tiles * Tile::kSize),
        column_(tile / p.n_tiles * Tile::kSize) {}

  /// `continues`: the sequence began before the window.
  __device__ void run(WalkPlace place, bool continues) {
    begin(place.chunk.sequence, continues);
    WalkStep here{};
    bool more = true;  // tokens to bring in
    for (int round = 0;; ++round) {
      wait_copies();
      __syncthreads();  // tokens of the last round are there, those of the one before are not used
      if (more) fetch(shared_.stages[round % 2], place);
      if (round > 0) {
        step(shared_.stages[(round - 1) % 2], here);
        if (!more) break;
      }
      here = place.step(p_);
      more = place.advance(p_);
    }
    end(place);
  }

 private:
  __device__ void fetch(WalkStage<T>& stage, const WalkPlace& place) {
    const Chunk& chunk = place.chunk;
    const std::int64_t token = chunk.begin + place.first;
    const ScalarSource scalars = scalars_of_chunk(p_.plan, p_.dt, p_.dA_cumsum, head_, place.c,
                                                  place.c - p_.window.first, p_.window.count);
    TileSource<T> rows{};
    rows.nrows = place.ntokens();
    if (scalars.segments != nullptr) {
      rows.segments = scalars.segments + place.first;
      rows.only_segment = segment_number(scalars.segments[scalars.width - 1]);
    }
    rows.data = static_cast<const T*>(p_.B) + chunk.row * p_.B_strides.row +
                token * p_.B_strides.token + head_ / p_.heads_per_group * p_.B_strides.column + n_;
    rows.stride = p_.B_strides.token;
    rows.ncolumns = p_.dstate - n_;
    rows.aligned = p_.B_aligned;
    load_tile<T, Tile::kSize>(stage.B, rows);
    rows.data = static_cast<const T*>(p_.x) + chunk.row * p_.x_strides.row +
                token * p_.x_strides.token + head_ * p_.x_strides.column + column_;
    rows.stride = p_.x_strides.token;
    rows.ncolumns = p_.headdim - column_;
    rows.aligned = p_.x_aligned;
    load_tile<T, Tile::kSize>(stage.x, rows);
    load_scalars(stage.tokens, scalars, place.first);
    const std::int64_t last = scalars.width - 1;
    if (threadIdx.x == 0) copy_async_4(&stage.last_high, scalars.sums + last, 4);
    if (threadIdx.x == 32) copy_async_4(&stage.last_low, scalars.sums + scalars.width + last, 4);
    if (threadIdx.x == 64) {
      stage.last_segment = scalars.segments == nullptr ? 0 : segment_number(scalars.segments[last]);
    }
  }

  __device__ void step(const WalkStage<T>& stage, const WalkStep& here) {
    if (threadIdx.x < kTileRows) {
      const auto j = static_cast<int>(threadIdx.x);
      const bool counts = j < here.ntokens && (p_.plan.segments == nullptr ||
                                               stage.tokens.segments[j] == stage.last_segment);
      const float log_decay = stage.tokens.log_decay(j, stage.last_high, stage.last_low);
      shared_.factors[j] = counts ? stage.tokens.dt[j] * decay_of<T>(log_decay) : 0.0F;
    }
    if (here.chunk_begins) {
      if (here.restarts) clear();
      save_state(here.slot);
      if (stage.last_segment != 0) clear();
      tile_.begin_chunk(decay_of<T>(stage.last_high + stage.last_low));
    }
    __syncthreads();
    tile_.add_tokens(stage.B, stage.x, shared_.factors, here.ntokens);
    if (here.chunk_ends) tile_.end_chunk();
  }

  __device__ void clear() {
    tile_.visit([](int, int, float& a, float& b) { a = b = 0.0F; });
  }

  // The state before the first chunk.
  __device__ void begin(std::int64_t sequence, bool continues) {
    if (continues) {
      visit_padded(p_.carry_in + std::int64_t{head_} * p_.dstate * p_.columns,
                   [](const float& stored, float& v) { v = stored; });
      return;
    }
    clear();
    if (p_.initial_states == nullptr) return;
    visit_public(p_.initial_states + sequence * p_.initial_strides.sequence +
                     head_ * p_.initial_strides.head,
                 p_.initial_strides.p, [](const float& stored, float& v) { v = stored; });
  }

  // The state after the last.
  __device__ void end(const WalkPlace& last) {
    const auto store = [](float& stored, float v) { stored = v; };
    if (last.sequence_goes_on()) {
      if (p_.carry_out == nullptr) return;
      visit_padded(p_.carry_out + std::int64_t{head_} * p_.dstate * p_.columns, store);
    } else if (p_.final_states != nullptr) {
      visit_public(p_.final_states + last.chunk.sequence * p_.final_strides.sequence +
                       head_ * p_.final_strides.head,
                   p_.final_strides.p, store);
    }
  }

  // f(element in memory, element of the tile) over a (dstate, columns) state.
  template <typename Float, typename F>
  __device__ void visit_padded(Float* state, F&& f) {
    tile_.visit([&](int n, int p, float& a, float& b) {
      if (n_ + n >= p_.dstate || column_ + p >= p_.columns) return;
      Float* at = state + std::int64_t{n_ + n} * p_.columns + column_ + p;
      f(at[0], a);
      f(at[1], b);  // columns are even
    });
  }

  // The same over a (headdim, dstate) state.
  template <typename Float, typename F>
  __device__ void visit_public(Float* state, std::int64_t stride, F&& f) {
    tile_.visit([&](int n, int p, float& a, float& b) {
      if (n_ + n >= p_.dstate) return;
      Float* at = state + (column_ + p) * stride + n_ + n;
      if (column_ + p < p_.headdim) f(at[0], a);
      if (column_ + p + 1 < p_.headdim) f(at[stride], b);
    });
  }

  __device__ void save_state(std::int64_t slot) {
    float* state = p_.states + (slot * p_.nheads + head_) * p_.dstate * p_.columns;
    if (!p_.states_aligned) {
      visit_padded(state, [](float& stored, float v) { stored = v; });
      return;
    }
    tile_.visit([&](int n, int p, float& a, float& b) {
      if (n_ + n >= p_.dstate || column_ + p >= p_.columns) return;
      float* at = state + std::int64_t{n_ + n} * p_.columns + column_ + p;
      *reinterpret_cast<float2*>(at) = {a, b};
    });
  }

  const WalkParams& p_;
  WalkShared<T>& shared_;
  const int head_;
  const int n_, column_;  // the tile's first
  Tile tile_;
};

template <typename Tile>
__global__ void __launch_bounds__(kTileThreads, Tile::kBlocks)
    walk_kernel(const __grid_constant__ WalkParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<WalkShared<typename Tile::Element>*>(memory);
  const auto tiles = static_cast<unsigned>(p.n_tiles * p.p_tiles);
  const auto tile = static_cast<int>(blockIdx.x % tiles);
  const auto head = static_cast<int>(blockIdx.x / tiles % static_cast<unsigned>(p.nheads));
  const std::int64_t slot = blockIdx.x / tiles / static_cast<unsigned>(p.nheads);
  const std::int64_t c = p.window.first + slot;
  WalkPlace place{c, 0, load_chunk(p.plan, c), load_chunk(p.plan, c + 1)};
  if (place.chunk.length == 0) return;
  const bool continues = load_chunk(p.plan, c - 1).sequence == place.chunk.sequence;
  if (continues && slot > 0) return;  // the block of the sequence's first chunk comes by here
  Walk<Tile>(p, shared, head, tile).run(place, continues);
}

}  // namespace adder::cuda
