#pragma once

// Weights on their way through shared memory: a piece of some rows in each stage, in the order in
// which they will be multiplied, over all projections of a program. What they are is known from the
// beginning, so that copies never wait for anything but room.

#include "ops/step_program/grid.cuh"

namespace adder::cuda::program {

/// A block's part of adjacent rows.
struct Part {
  int first, rows;

  __device__ explicit Part(const Spread& spread) {
    const auto block = static_cast<int>(blockIdx.x);
    first = spread.first + block * spread.rows + min(block, spread.extra);
    rows = spread.rows + (block < spread.extra ? 1 : 0);
  }
};

/// A block's rows of a weight, in the order in which it multiplies them. A tile has rows before
/// `split`, which are for those beside, or after it.
struct Share {
  Part shared, channels, others;
  int split, rows;

  template <typename X>
  __device__ explicit Share(const Linear<X>& linear)
      : shared(linear.shared), channels(linear.channels), others(linear.others) {
    split = shared.rows + channels.rows;
    rows = split + others.rows;
  }

  /// Of the weight.
  __device__ int row_of(int place) const {
    if (place >= split) return others.first + place - split;
    return place < shared.rows ? shared.first + place : channels.first + place - shared.rows;
  }
  __device__ int tile_end(int tile) const {
    return min(tile + kTileRows, tile < split ? split : rows);
  }
  /// Where tiles with all of the shared rows end.
  __device__ int shared_end() const {
    return min((shared.rows + kTileRows - 1) / kTileRows * kTileRows, split);
  }
};

/// Stages with the block's states.
__device__ __forceinline__ int state_stages(const Heads& heads, const Share& share) {
  int stages = 0;
#pragma unroll 1
  for (int rows = share.channels.rows; rows > 0; rows -= heads.stage_rows) ++stages;
  return stages;
}
/// Stages with so many rows of a weight, tile by tile.
template <typename X>
__device__ __forceinline__ int weight_stages(const Linear<X>& linear, int rows) {
  const int last = (1 << linear.log2_stage_rows) - 1;
  // Tiles are of whole stages, but for the end of the last.
  return linear.pieces * ((rows + last) >> linear.log2_stage_rows);
}

/// The stages, each used again when all warps are done with it.
class Ring {
 public:
  __device__ Ring(Barrier* barriers, char* stages, int nstages)
      : full_(barriers), empty_(barriers + kMaxStages), stages_(stages), nstages_(nstages) {}

  /// By one thread, before the others go on.
  __device__ void init() const {
    for (int i = 0; i < nstages_; ++i) {
      init_barrier(full_ + i, 1);
      init_barrier(empty_ + i, kWarps);
    }
    fence_barrier_init();
  }

  __device__ char* stage() const { return stages_ + stage_ * kStageBytes; }
  /// The stage so many later, at most nstages.
  __device__ char* stage(int later) const {
    const int stage = stage_ + later;
    return stages_ + (stage < nstages_ ? stage : stage - nstages_) * kStageBytes;
  }

  /// By the warp that copies: waits until the stage is empty and few copies are under way, and
  /// announces bytes that will come; what they are counted by.
  __device__ Barrier* begin_copies(int bytes) const {
    if (round_ > 0) wait(empty_ + stage_, (round_ - 1) & 1u);
    const int before = stage_ - kStagesUnderWay;
    if (before >= 0) {
      wait(full_ + before, round_ & 1u);
    } else if (round_ > 0) {
      wait(full_ + before + nstages_, (round_ - 1) & 1u);
    }
    Barrier* full = full_ + stage_;
    if (lane_index() == 0) arrive_expecting(full, static_cast<std::uint32_t>(bytes));
    __syncwarp();
    return full;
  }
  __device__ void wait_until_full() const { wait(full_ + stage_, round_ & 1u); }
  /// By all lanes of a warp, one for each: until the next `count` stages are full.
  __device__ void wait_until_full(int count) const {
    if (lane_index() < count) {
      const int stage = stage_ + lane_index();
      const bool is_next_round = stage >= nstages_;
      wait(full_ + (is_next_round ? stage - nstages_ : stage), (round_ + is_next_round) & 1u);
    }
    __syncwarp();
  }
  /// Likewise by each warp that multiplies: it is done with them.
  __device__ void release(int count) const {
    __syncwarp();
    if (lane_index() < count) {
      const int stage = stage_ + lane_index();
      arrive(empty_ + (stage >= nstages_ ? stage - nstages_ : stage));
    }
  }
  /// The same by each warp beside, which then speaks for those that multiply.
  __device__ void release_by_side(int side_warp) const {
    constexpr int kEach = kWarps / kSideWarps;
    const int times = side_warp == 0 ? kWarps - (kSideWarps - 1) * kEach : kEach;
    if (lane_index() == 0) arrive(empty_ + stage_, times);
  }
  __device__ void advance() {
    if (++stage_ < nstages_) return;
    stage_ = 0;
    ++round_;
  }
  /// At most nstages.
  __device__ void advance_little(int count) {
    stage_ += count;
    if (stage_ < nstages_) return;
    stage_ -= nstages_;
    ++round_;
  }
  __device__ void advance(int count) {
    stage_ += count;
    const int rounds = stage_ / nstages_;
    stage_ -= rounds * nstages_;
    round_ += static_cast<unsigned>(rounds);
  }

 private:
  Barrier* full_;
  Barrier* empty_;
  char* stages_;
  int nstages_;
  int stage_ = 0;
  unsigned round_ = 0;
};

/// Asks for memory that no operation writes and one will read, as far as the L2 cache.
template <typename X>
class Prefetch {
 public:
  __device__ static void of(const Instruction<X>& instruction, bool is_mine) {
    if (is_projection(instruction)) of_linear(instruction.linear, is_mine);
    if (instruction.kind == Kind::mixer && is_mine) of_all_heads(instruction.heads);
    if (instruction.kind == Kind::ssd) {
      if (is_mine) of_all_heads(instruction.heads);
      of_states(instruction.heads);
    }
  }

 private:
  static constexpr int kLine = 32;  // floats

  __device__ static void lines(const float* from, int count) {
    if (from == nullptr) return;
#pragma unroll 1
    for (int i = kLine * lane_index(); i < count; i += kLine * kWarpSize) prefetch_l2(from + i);
  }

  // What all blocks need, one asks for: the one whose `is_mine` is true.
  __device__ static void of_linear(const Linear<X>& p, bool is_mine) {
    if (is_mine) lines(p.norm_weight, p.in);
    const Share share(p);
    of_conv(p, share.shared);
    of_conv(p, share.channels);
    of_conv(p, share.others);
  }
  __device__ __noinline__ static void of_conv(const Linear<X>& p, const Part& rows) {
    const int begin = max(rows.first - p.conv_begin, 0);
    const int count = min(rows.first + rows.rows - p.conv_begin, p.conv_channels) - begin;
#pragma unroll 1
    for (int k = 0; k < p.conv_width; ++k) {
      if (p.conv_channel_stride == 1) {
        lines(p.conv_weight + k * p.conv_tap_stride + begin, count);
      }
      if (k + 1 == p.conv_width) break;
#pragma unroll 1
      for (int s = 0; s < p.batch; ++s) {
        lines(p.conv_state.data + s * p.conv_state.row + k * p.conv_state_row + begin, count);
      }
    }
  }

  __device__ static void of_all_heads(const Heads& p) {
    lines(p.A, p.nheads);
    lines(p.dt_bias, p.nheads);
    lines(p.D, p.nheads * (p.D_has_headdim ? p.headdim : 1));
  }

  // The units of the block's warps, see HeadRows.
  __device__ static void of_states(const Heads& p) {
#pragma unroll 1
    for (int i = lane_index() / kWarpRows;; i += kWarpSize / kWarpRows) {
      const int row = (i * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * kWarpRows +
                      lane_index() % kWarpRows;
      if (row >= p.rows) break;
      const int unit = row / p.headdim;
      const int sequence = unit / p.nheads;
      const float* state = p.state + sequence * p.state_sequence +
                           (unit - sequence * p.nheads) * p.state_head +
                           (row - unit * p.headdim) * p.state_channel;
#pragma unroll 1
      for (int n = 0; n < p.dstate; n += kLine) prefetch_l2(state + n);
    }
  }
};

/// The states of a block's channels, which are adjacent.
__device__ __forceinline__ void copy_states(const Heads& heads, int first, int rows, Ring& ring) {
#pragma unroll 1
  for (int begin = 0; begin < rows; begin += heads.stage_rows) {
    const int bytes = 4 * heads.dstate * min(heads.stage_rows, rows - begin);
    Barrier* full = ring.begin_copies(bytes);
    if (lane_index() == 0) {
      load_bytes(ring.stage(), heads.state + (first + begin) * heads.dstate,
                 static_cast<std::uint32_t>(bytes), full);
    }
    ring.advance();
  }
}

/// By one warp: copies the weights of all projections and the states of mixers, and asks for what
/// else operations will need.
template <typename X>
__device__ void copy_weights(const Params<X>& p, Ring ring,
                             typename Fetcher<X, kWarpSize>::Memory& memory) {
  const int lane = lane_index();
  Fetcher<X, kWarpSize> fetcher(p, memory, lane);
#pragma unroll 1
  for (int i = 0; i < p.count; ++i) {
    __syncwarp();
    const Instruction<X>& instruction = fetcher.get(i);
    fetcher.advance(i);
    const bool is_mine = i % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x);
    if (!is_projection(instruction)) {
      Prefetch<X>::of(instruction, is_mine);
      continue;
    }
    const Linear<X>& linear = instruction.linear;
    const Share share(linear);
    const int in = linear.in;
    const int piece = linear.piece;
    const std::int64_t weight_row = linear.weight_row;
    const int stage_rows = 1 << linear.log2_stage_rows;
    const int stage_row = linear.stage_row;
#pragma unroll 1
    for (int tile = 0; tile < share.rows;) {
      const int end = share.tile_end(tile);
#pragma unroll 1
      for (int k = 0; k < in; k += piece) {
        const int bytes = 2 * min(piece, in - k);
#pragma unroll 1
        for (int first = tile; first < end; first += stage_rows) {
          const int rows = min(stage_rows, end - first);
          Barrier* full = ring.begin_copies(rows * bytes);
          if (lane < rows) {
            load_bytes(ring.stage() + lane * stage_row,
                       linear.weight + share.row_of(first + lane) * weight_row + k,
                       static_cast<std::uint32_t>(bytes), full);
          }
          ring.advance();
        }
      }
      // Not before the first copies: those are what all wait for.
      if (tile == 0) Prefetch<X>::of(instruction, is_mine);
      tile = end;
      if (tile == share.split) {
        copy_states(instruction.heads, share.channels.first - linear.channels.first,
                    share.channels.rows, ring);
      }
    }
  }
}

}  // namespace adder::cuda::program
