#pragma once

// Outputs of a chunk for some heads of one group.
//
// Work for T tokens of a head, chunks of 64: T · 64 · (dstate + headdim) flops inside the chunk
// (C Bᵀ once for all heads of a block) and 2 T dstate headdim for the state; bytes T · headdim of
// x, z and y each, T · dstate of B and C, and 4 T dstate headdim / 64 of states. In bf16 with a
// state of 64 × 128: 29,000 flops and 1,300 bytes a token, two thirds of them states: bound by
// memory or, when a window's states are still in the L2 cache, by reading them from there and from
// shared memory, where they pass as floats.
//
//   block    a chunk, a group, a run of its items; an item is 64 columns of a head
//   items    one after the other. A long chunk has blocks of 64 tokens, rows i from the last to the
//            first (y may be x: no row of x is overwritten before its last use), and for each of
//            them the tokens j from the first block to that of i
//   step     of one pair of tiles in shared memory. For each item and block of rows:
//              state    y += C S          64 of dstate at a time; then y is scaled by 2^s_i
//              score    scores += C Bᵀ    64 of dstate at a time, unless those are at hand
//              apply    y += weights x    64 tokens; after the last, y + D x is gated and stored
//   copies   of the next step run during a step (two stages)
//   shared   16-bit: 2 · (8 + 17 + 1) KB; f32: 2 · (17 + 17 + 1) KB
//
// Registers (nvcc 13.0, sm_90; nothing spills): bf16 and f16 128, four blocks of a multiprocessor;
// f32 157 (154 with tf32), three.

#include <type_traits>

#include "ops/compute_out/cuda_kernel.h"
#include "ops/compute_out/cuda_out_tile.cuh"

namespace adder::cuda {

template <typename T, typename Void>
__device__ __forceinline__ auto* element(const OutTensor<Void>& tensor, std::int64_t row,
                                         std::int64_t token, std::int64_t column) {
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
  return static_cast<Element*>(tensor.data) + row * tensor.row + token * tensor.token +
         column * tensor.column;
}

template <typename Tile>
struct OutStage {
  using T = typename Tile::Element;
  static constexpr int kSecondBytes = SharedTile<T>::kBytes > SharedTile<float>::kBytes
                                          ? SharedTile<T>::kBytes
                                          : SharedTile<float>::kBytes;
  alignas(128) unsigned char first[SharedTile<T>::kBytes];
  alignas(128) unsigned char second[kSecondBytes];
  TokenScalars tokens;
};

template <typename Tile>
struct OutShared {
  OutStage<Tile> stages[2];
};

enum class OutPhase : int { state, score, apply };

/// One step, and the way to the next.
struct OutStep {
  int item;
  int i, j;  ///< blocks of 64 tokens
  int slice;
  OutPhase phase;
  int scores_i, scores_j;  ///< whose scores are at hand

  __device__ bool diagonal() const { return i == j; }

  /// False after the last step of `end_item` - 1.
  __device__ bool advance(int slices, int last_i, int end_item) {
    switch (phase) {
      case OutPhase::state:
        if (++slice < slices) return true;
        slice = 0;
        j = 0;
        phase = phase_of_tokens();
        return true;
      case OutPhase::score:
        if (++slice < slices) return true;
        slice = 0;
        scores_i = i;
        scores_j = j;
        phase = OutPhase::apply;
        return true;
      case OutPhase::apply:
        break;
    }
    if (j < i) {
      ++j;
      phase = phase_of_tokens();
      return true;
    }
    phase = OutPhase::state;
    i = i > 0 ? i - 1 : last_i;
    if (i == last_i) ++item;
    return item < end_item;
  }

 private:
  __device__ OutPhase phase_of_tokens() const {
    return scores_i == i && scores_j == j ? OutPhase::apply : OutPhase::score;
  }
};

template <typename Tile>
class OutBlock {
 public:
  using T = typename Tile::Element;

  __device__ OutBlock(const OutParams& p, OutShared<Tile>& shared, std::int64_t slot, int group,
                      int first_item)
      : p_(p),
        shared_(shared),
        slot_(slot),
        c_(p.window.first + slot),
        chunk_(load_chunk(p.plan, c_)),
        group_(group),
        first_item_(first_item),
        end_item_(min(first_item + p.items_per_block, p.items)) {}

  __device__ void run() {
    zero_tokens_without_chunk();
    if (chunk_.length == 0) return;
    const auto last_i = static_cast<int>((chunk_.length - 1) / kTileRows);
    OutStep ahead{first_item_, last_i, 0, 0, OutPhase::state, -1, -1};
    OutStep here = ahead;
    bool more = true;  // tiles to bring in
    for (int round = 0;; ++round) {
      wait_copies();
      __syncthreads();  // tiles of the last round are there, those of the one before are not used
      if (more) fetch(shared_.stages[round % 2], ahead);
      if (round > 0) {
        step(shared_.stages[(round - 1) % 2], here);
        if (!more) break;
      }
      here = ahead;
      more = ahead.advance(p_.dstate_slices, last_i, end_item_);
    }
  }

 private:
  // ---- what belongs to a step ----

  __device__ int head(int item) const {
    return group_ * (p_.nheads / p_.ngroups) + item / p_.p_tiles;
  }
  __device__ int first_column(int item) const { return item % p_.p_tiles * kTileColumns; }
  __device__ int ncolumns(int item) const {
    return min(kTileColumns, p_.headdim - first_column(item));
  }
  __device__ int ndstate(int slice) const {
    return min(kTileColumns, p_.dstate - slice * kTileColumns);
  }
  __device__ int nrows(int block) const {
    return static_cast<int>(
        min(std::int64_t{kTileRows}, chunk_.length - std::int64_t{block} * kTileRows));
  }
  __device__ bool has_segments() const { return p_.plan.segments != nullptr; }

  // Rows of a block of 64 tokens; padding is zero.
  __device__ TileSource<T> rows(const OutTensor<const void>& tensor, int block, int column,
                                int first, int count) const {
    const std::int64_t token = std::int64_t{block} * kTileRows;
    TileSource<T> out{};
    out.data = element<T>(tensor, chunk_.row, chunk_.begin + token, column) + first;
    out.stride = tensor.token;
    out.nrows = nrows(block);
    out.ncolumns = count;
    out.aligned = tensor.aligned;
    if (has_segments()) out.segments = p_.plan.segments + c_ * p_.plan.chunk_size + token;
    return out;
  }

  __device__ TileSource<float> state_rows(const OutStep& s) const {
    const std::int64_t n = std::int64_t{s.slice} * kTileColumns;
    TileSource<float> out{};
    out.data = p_.states + ((slot_ * p_.nheads + head(s.item)) * p_.dstate + n) * p_.columns +
               first_column(s.item);
    out.stride = p_.columns;
    out.nrows = ndstate(s.slice);
    out.ncolumns = p_.columns - first_column(s.item);
    out.aligned = p_.states_aligned;
    return out;
  }

  __device__ void fetch(OutStage<Tile>& stage, const OutStep& s) const {
    const bool apply = s.phase == OutPhase::apply;
    const int own_head = head(s.item);
    const int column = apply ? own_head : group_;
    const int first = apply ? first_column(s.item) : s.slice * kTileColumns;
    const int count = apply ? ncolumns(s.item) : ndstate(s.slice);
    if (!apply || (p_.z.data != nullptr && s.diagonal())) {
      load_tile<T>(stage.first, rows(apply ? p_.z : p_.C, s.i, column, first, count));
    }
    if (s.phase == OutPhase::state) {
      load_tile<float>(stage.second, state_rows(s));
    } else {
      load_tile<T>(stage.second, rows(apply ? p_.x : p_.B, s.j, column, first, count));
    }
    load_scalars(
        stage.tokens,
        scalars_of_chunk(p_.plan, p_.dt, p_.dA_cumsum, own_head, c_, slot_, p_.window.count),
        std::int64_t{apply ? s.j : s.i} * kTileRows);
  }

  __device__ void step(OutStage<Tile>& stage, const OutStep& s) {
    const int first_row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
    if (first_row >= nrows(s.i)) return;  // nothing of this warp's
    switch (s.phase) {
      case OutPhase::state:
        if (s.slice == 0) tile_.clear_y();
        tile_.add_state(stage.first, stage.second, ndstate(s.slice), ncolumns(s.item));
        if (s.slice + 1 == p_.dstate_slices) tile_.decay_rows(stage.tokens, has_segments());
        break;
      case OutPhase::score:
        if (s.slice == 0) tile_.clear_scores();
        tile_.add_scores(stage.first, stage.second, ndstate(s.slice), s.diagonal());
        break;
      case OutPhase::apply:
        tile_.add_tokens(stage.second, stage.tokens, {s.diagonal(), has_segments()},
                         ncolumns(s.item));
        if (s.diagonal()) finish(stage, s, first_row);
        break;
    }
  }

  // ---- outputs ----

  // y + D x, gated, takes the place of z in shared memory, from where rows go out whole. A warp
  // touches only its own rows.
  __device__ void finish(OutStage<Tile>& stage, const OutStep& s, int first_row) {
    const int own_head = head(s.item);
    const int columns = ncolumns(s.item);
    const float* D = p_.D == nullptr ? nullptr
                     : p_.D_has_headdim
                         ? p_.D + std::int64_t{own_head} * p_.headdim + first_column(s.item)
                         : p_.D + own_head;
    tile_.visit([&](int row, int column, std::int32_t segment, float a, float b) {
      if (column >= columns) return;
      if (D != nullptr) {
        const float2 x = read_pair<T>(stage.second, row, column);
        const bool both = column + 1 < columns;
        a += (p_.D_has_headdim ? D[column] : D[0]) * x.x;
        b += (p_.D_has_headdim ? (both ? D[column + 1] : 0.0F) : D[0]) * x.y;
      }
      if (p_.z.data != nullptr) {
        const float2 z = read_pair<T>(stage.first, row, column);
        a *= silu<T>(z.x);
        b *= silu<T>(z.y);
      }
      const bool padding = segment < 0;
      write_pair<T>(stage.first, row, column, padding ? 0.0F : a, padding ? 0.0F : b);
    });
    __syncwarp();
    store_rows(stage.first, s, first_row, columns);
  }

  __device__ void store_rows(const unsigned char* tile, const OutStep& s, int first_row,
                             int columns) const {
    constexpr int kAccesses = kTileColumns / kVector<T>;  // of a row
    const int lane = opaque(static_cast<int>(threadIdx.x) % kWarpSize);
    const int rows_there = nrows(s.i);
    T* y =
        element<T>(p_.y, chunk_.row, chunk_.begin + std::int64_t{s.i} * kTileRows, head(s.item)) +
        first_column(s.item);
#pragma unroll
    for (int index = lane; index < 16 * kAccesses; index += kWarpSize) {
      const int row = first_row + index / kAccesses;
      const int column = index % kAccesses * kVector<T>;
      if (row >= rows_there || column >= columns) continue;
      const auto* from = reinterpret_cast<const T*>(tile + SharedTile<T>::offset(row, column));
      T* to = y + row * p_.y.token + column;
      if (p_.y.aligned && column + kVector<T> <= columns) {
        store(to, load<kVector<T>>(from));
      } else {
        for (int k = 0; k < kVector<T> && column + k < columns; ++k) to[k] = from[k];
      }
    }
  }

  // Tokens counted through all rows of the batch.
  __device__ std::int64_t flat_begin(const Chunk& chunk) const {
    return chunk.row * p_.plan.seqlen + chunk.begin;
  }

  // Those between the chunk before and this one, and after the last, for the block's items.
  __device__ void zero_tokens_without_chunk() const {
    std::int64_t done = 0;
    if (c_ > 0) {
      const Chunk before = load_chunk(p_.plan, c_ - 1);
      done = flat_begin(before) + before.length;
    }
    zero(done, flat_begin(chunk_));
    if (c_ + 1 == p_.plan.nchunks) {
      zero(flat_begin(chunk_) + chunk_.length, p_.plan.batch * p_.plan.seqlen);
    }
  }

  __device__ void zero(std::int64_t begin, std::int64_t end) const {
    const auto lane = static_cast<int>(threadIdx.x) % kTileColumns;
    for (std::int64_t t = begin + threadIdx.x / kTileColumns; t < end;
         t += kTileThreads / kTileColumns) {
      for (int item = first_item_; item < end_item_; ++item) {
        if (lane >= ncolumns(item)) continue;
        T* y = element<T>(p_.y, t / p_.plan.seqlen, t % p_.plan.seqlen, head(item));
        y[first_column(item) + lane] = T{};
      }
    }
  }

  const OutParams& p_;
  OutShared<Tile>& shared_;
  const std::int64_t slot_, c_;
  const Chunk chunk_;
  const int group_, first_item_, end_item_;
  Tile tile_;
};

template <typename Tile>
__global__ void __launch_bounds__(kTileThreads, Tile::kBlocks)
    out_kernel(const __grid_constant__ OutParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<OutShared<Tile>*>(memory);
  const auto blocks = static_cast<unsigned>(p.blocks_per_group);
  const auto ngroups = static_cast<unsigned>(p.ngroups);
  const auto block = static_cast<int>(blockIdx.x % blocks);
  const auto group = static_cast<int>(blockIdx.x / blocks % ngroups);
  OutBlock<Tile>(p, shared, blockIdx.x / blocks / ngroups, group, block * p.items_per_block).run();
}

}  // namespace adder::cuda
