#pragma once

// Weights on their way through shared memory: a piece of some rows in each stage, in the order in
// which they will be multiplied, over all projections of a program. What they are is known from the
// beginning, so that copies never wait for anything but room.

#include "ops/step_program/grid.cuh"

namespace adder::cuda::program {

/// A block's rows of a weight.
struct Share {
  int first, rows;

  template <typename X>
  __device__ explicit Share(const Linear<X>& linear) {
    const auto block = static_cast<int>(blockIdx.x);
    first = block * linear.rows + min(block, linear.extra);
    rows = linear.rows + (block < linear.extra ? 1 : 0);
  }
};

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
  /// The stage so many later, at most kFewestStages.
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
  /// By each warp: it is done with the stage.
  __device__ void release() const {
    if (lane_index() == 0) arrive(empty_ + stage_);
  }
  __device__ void advance() {
    if (++stage_ < nstages_) return;
    stage_ = 0;
    ++round_;
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
    if (instruction.kind == Kind::linear) {
      of_linear(instruction.linear, is_mine);
    } else if (instruction.kind == Kind::ssd) {
      of_heads(instruction.heads, is_mine);
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
    const int begin = max(share.first - p.conv_begin, 0);
    const int count = min(share.first + share.rows - p.conv_begin, p.conv_channels) - begin;
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

  // The units of the block's warps, see HeadRows.
  __device__ static void of_heads(const Heads& p, bool is_mine) {
    if (is_mine) {
      lines(p.A, p.nheads);
      lines(p.dt_bias, p.nheads);
      lines(p.D, p.nheads * (p.D_has_headdim ? p.headdim : 1));
    }
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

/// By one warp: copies the weights of all projections, and asks for what else operations will need.
template <typename X>
__device__ void copy_weights(const Params<X>& p, Ring ring) {
  const int lane = lane_index();
#pragma unroll 1
  for (int i = 0; i < p.count; ++i) {
    const Instruction<X>& instruction = p.instructions[i];
    Prefetch<X>::of(instruction, i % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x));
    if (instruction.kind != Kind::linear) continue;
    const Linear<X>& linear = instruction.linear;
    const Share share(linear);
    const int in = linear.in;
    const int piece = linear.piece;
    const int weight_row = linear.weight_row;
    const int stage_rows = 1 << linear.log2_stage_rows;
    const int stage_row = linear.stage_row;
    const bf16* weight = linear.weight + share.first * std::int64_t{weight_row} + lane * weight_row;
#pragma unroll 1
    for (int tile = 0; tile < share.rows; tile += kTileRows) {
      const int end = min(tile + kTileRows, share.rows);
#pragma unroll 1
      for (int k = 0; k < in; k += piece) {
        const int bytes = 2 * min(piece, in - k);
#pragma unroll 1
        for (int first = tile; first < end; first += stage_rows) {
          const int rows = min(stage_rows, end - first);
          Barrier* full = ring.begin_copies(rows * bytes);
          if (lane < rows) {
            load_bytes(ring.stage() + lane * stage_row, weight + first * weight_row + k,
                       static_cast<std::uint32_t>(bytes), full);
          }
          ring.advance();
        }
      }
    }
  }
}

}  // namespace adder::cuda::program
