#pragma once

// Work per token, channel and state: dt · A, its exponential, dt x · B, the update and the sum of
// C · h: 4 instructions of the FMA pipes and 1 of the special-function unit, which takes 8 times as
// long; on top per token and channel softplus, SiLU and 8 bytes of x, dt, z and y in 16-bit types.
// Bounds for a batch of 8 x 2,048 tokens, 5,120 channels and 16 states on an H200, 132
// multiprocessors at 1.75 GHz: 0.43 ms for the special functions (16 a clock), 0.46 ms to issue all
// instructions of this kernel, 0.16 ms for the bytes at 4.28 TB/s. As both units are full, moving
// some exponentials to polynomials (10 instructions each) would not help, and for an A that still
// is what training starts from, -1 to -16, powers of one exponential would save less than a tenth.
// Float32 takes the polynomial for its exactness: 0.9 ms.
//
// Map: a block of 128 threads takes 128 / kLanes adjacent channels of one group through the tokens
// of one segment, 16 (a tile) at a time. Twice per tile it changes its shape:
//   elements   a thread has 4 channels of some tokens: dt = softplus(...) and dt x before the scan,
//              D x, SiLU(z) and the store after it, with vectors of 4 channels in memory
//   scan       a channel belongs to kLanes threads with kStates states each, in registers from the
//              first token to the last: no exchange between threads, all of a warp at one token
// With 8 states a thread, 8 sequences of 5,120 channels are 640 blocks: 5 of a multiprocessor, all
// on the device at once. Tiles of x, dt, B and C are read from memory one ahead, during the scan of
// the tile before, and z during that of its own. A token's y is summed over kLanes partial sums
// from shared memory in a fixed order. Tokens that are padding, or past the end, have dt = 0 and
// B = 0: they leave the state as it is, except that -0 becomes +0.
//
// Shared memory: 20 KB at 16 states (8 of dt and dt x, 2 of B and C, 10 of partial sums), 45 KB at
// 256. Registers (nvcc 13.0, sm_90): 96 at 16 and 32 states of 16-bit inputs, at most 168; no
// spills, but for a few words at 64 states of float32.

#include <cstdint>

#include "ops/selective_scan/cuda_kernel.h"
#include "ops/selective_scan/cuda_math.cuh"
#include "ops/selective_scan/cuda_tile.cuh"

namespace adder::cuda {

/// What seq_idx makes of the tokens of a tile, one bit each.
struct TileTokens {
  unsigned live;    ///< exist and are no padding
  unsigned resets;  ///< begin with a state of zeros
};

/// One block's walk through one segment. kOutputs: writes y and the final states; otherwise what
/// the segment leaves of a state of zeros, and the sum of its dt. kVectors: all rows are known to
/// be aligned; otherwise the parameters say so.
template <typename T, int kLanes, int kStates, bool kOutputs, bool kVectors>
class ScanBlock {
 public:
  using Tile = ScanTile<kLanes, kStates>;

  __device__ __forceinline__ ScanBlock(const ScanParams& params, Tile& shared)
      : p(params), tile(shared) {
    const std::int64_t group_size = p.d_inner / p.ngroups;
    const std::int64_t blocks = (group_size + Tile::kChannels - 1) / Tile::kChannels;
    std::int64_t unit = blockIdx.x;
    const std::int64_t offset = unit % blocks * Tile::kChannels;
    unit /= blocks;
    group = unit % p.ngroups;
    unit /= p.ngroups;
    const std::int64_t nsegments = kOutputs ? p.nsegments : p.nsegments - 1;
    segment = unit % nsegments;
    sequence = unit / nsegments;
    channel = group * group_size + offset;
    const std::int64_t rest = group_size - offset;
    nchannels = rest < Tile::kChannels ? static_cast<int>(rest) : Tile::kChannels;
    row = p.cu_seqlens == nullptr ? sequence : 0;
    find_tokens();

    const int thread = static_cast<int>(threadIdx.x);
    column = thread % kColumns * kScanVector;
    first_row = thread / kColumns;
    ncolumns = nchannels - column;
    own_channel = thread / kLanes;
    lane = thread % kLanes;
    x_from = first_element(p.x);
    dt_from = first_element(p.dt);
    z_from = first_element(p.z);
    y_to = static_cast<T*>(p.y.data) + place_of_first(p.y.row, p.y.token);
  }

  __device__ __forceinline__ void run() {
    load_constants();
    load_state();
    load_tile(begin);
    for (std::int64_t first = begin; first < end; first += kScanTokens) {
      const int ntokens = tokens_from(first);
      const TileTokens tokens = look_at(ntokens);
      stage_steps(tokens.live);
      stage_groups(first, tokens.live);
      Pack<T, kScanVector> x_of_tile[kPacks];
#pragma unroll
      for (int i = 0; i < kPacks; ++i) x_of_tile[i] = x[i];
      __syncthreads();
      if (kOutputs && p.z.data != nullptr) load_rows(z_from, p.z.token, ntokens, z);
      load_tile(first + kScanTokens);
      scan(ntokens, tokens.resets);
      if (!kOutputs) sum_of_steps += steps_of_tile;
      __syncthreads();
      if (kOutputs) finish(ntokens, tokens.live, x_of_tile);
    }
    if (kOutputs) {
      if (segment == p.nsegments - 1) store_final();
    } else {
      store_segment();
    }
  }

 private:
  static constexpr int kColumns = Tile::kChannels / kScanVector;  // packs of a token
  static constexpr int kRows = kScanThreads / kColumns;           // tokens of one pack a thread
  static constexpr int kPacks = kRows < kScanTokens ? kScanTokens / kRows : 1;  // of a thread
  static constexpr int kGroupColumns = Tile::kDState / kScanVector;
  static constexpr int kGroupPacks = (kOutputs ? 2 : 1) * kScanTokens * kGroupColumns;
  static constexpr int kOwnGroupPacks = (kGroupPacks + kScanThreads - 1) / kScanThreads;
  // Beyond that B and C would take too many registers, and the scan of a tile takes long anyway.
  static constexpr bool kGroupsAhead = kOwnGroupPacks <= 2;
  static constexpr int kQuads = kStates / 4;
  static constexpr unsigned kWholeTile = (1U << kScanTokens) - 1;

  // Tokens [begin, end) of the segment. Whatever cu_seqlens holds, they exist.
  __device__ __forceinline__ void find_tokens() {
    std::int64_t from = 0;
    std::int64_t to = p.seqlen;
    if (p.cu_seqlens != nullptr) {
      from = min(max(std::int64_t{p.cu_seqlens[sequence]}, std::int64_t{0}), p.seqlen);
      to = min(max(std::int64_t{p.cu_seqlens[sequence + 1]}, from), p.seqlen);
    }
    const std::int64_t tiles = (to - from + kScanTokens - 1) / kScanTokens;
    const std::int64_t length = (tiles + p.nsegments - 1) / p.nsegments * kScanTokens;
    begin = min(from + segment * length, to);
    end = min(begin + length, to);
  }

  __device__ __forceinline__ std::int64_t segment_slot(std::int64_t i) const {
    return sequence * p.nsegments + i;
  }
  /// Position in a row of states of the thread's state k: four adjacent ones of each lane in turn.
  __device__ __forceinline__ int state_at(int k) const {
    return k / 4 * (4 * kLanes) + 4 * lane + k % 4;
  }
  __device__ __forceinline__ bool has_state(int k) const {
    return own_channel < nchannels && state_at(k) < p.dstate;
  }

  // ---- beginning --------------------------------------------------------------------------------

  __device__ __forceinline__ void load_constants() {
#pragma unroll
    for (int i = 0; i < kScanVector; ++i) {
      const bool exists = i < ncolumns;
      bias[i] = exists && p.dt_bias != nullptr ? p.dt_bias[channel + column + i] : 0.0F;
      D[i] = exists && p.D != nullptr ? p.D[channel + column + i] : 0.0F;
    }
    const float* from = p.A + (channel + own_channel) * p.A_stride;
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      A[k] = has_state(k) ? scan_rate(from[state_at(k)] * kLog2E) : 0.0F;
    }
  }

  // The state before the segment, and the entry of seq_idx that it belongs to.
  __device__ __forceinline__ void load_state() {
    const float* from = nullptr;
    if (kOutputs && p.nsegments > 1) {
      from =
          p.segment_states + (segment_slot(segment) * p.d_inner + channel + own_channel) * p.dstate;
    } else if (kOutputs && p.initial.data != nullptr) {
      from = p.initial.data + sequence * p.initial.sequence +
             (channel + own_channel) * p.initial.channel;
    }
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      h[k] = from != nullptr && has_state(k) ? from[state_at(k)] : 0.0F;
    }
    if (kOutputs && p.seq_idx != nullptr) {
      for (std::int64_t i = segment - 1; i >= 0 && last_index < 0; --i) {
        last_index = p.segment_marks[segment_slot(i)].last;
      }
    }
  }

  // ---- elements ---------------------------------------------------------------------------------

  __device__ __forceinline__ bool has_pack(int i) const {
    return kRows <= kScanTokens || first_row + i * kRows < kScanTokens;
  }

  __device__ __forceinline__ bool channel_vectors() const { return kVectors || p.channel_vectors; }

  // Of the tile at `first`; not positive past the end.
  __device__ __forceinline__ int tokens_from(std::int64_t first) const {
    return end - first < kScanTokens ? static_cast<int>(end - first) : kScanTokens;
  }

  // From a tensor's first element to the thread's first one of the first tile.
  __device__ __forceinline__ std::int64_t place_of_first(std::int64_t row_stride,
                                                         std::int64_t token_stride) const {
    return row * row_stride + (begin + first_row) * token_stride + channel + column;
  }
  __device__ __forceinline__ const T* first_element(const ScanTensor<const void>& tensor) const {
    return static_cast<const T*>(tensor.data) + place_of_first(tensor.row, tensor.token);
  }

  // The thread's packs of a tile of x, dt or z, the first of them at `from`; zero past the end.
  // Moves on to the next tile.
  __device__ __forceinline__ void load_rows(const T*& from, std::int64_t stride, int ntokens,
                                            Pack<T, kScanVector> (&packs)[kPacks]) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const bool exists = first_row + i * kRows < ntokens;
      packs[i] = load_some(from + i * kRows * stride, exists ? ncolumns : 0, channel_vectors());
    }
    from += kScanTokens * stride;
  }

  // Pack i of the thread of a tile of B, then C.
  __device__ __forceinline__ Pack<T, kScanVector> load_group(std::int64_t first, int i) const {
    const int number = static_cast<int>(threadIdx.x) + i * kScanThreads;
    const bool is_C = number >= kScanTokens * kGroupColumns;
    const int n = number % kGroupColumns * kScanVector;
    const std::int64_t token = first + number / kGroupColumns % kScanTokens;
    const ScanTensor<const void>& tensor = is_C ? p.C : p.B;
    const T* from = static_cast<const T*>(tensor.data) + row * tensor.row + token * tensor.token +
                    group * tensor.group + n;
    const bool exists = number < kGroupPacks && token < end;
    return load_some(from, exists ? static_cast<int>(p.dstate) - n : 0,
                     kVectors || p.state_vectors);
  }

  __device__ __forceinline__ void load_tile(std::int64_t first) {
    const int ntokens = tokens_from(first);
    load_rows(x_from, p.x.token, ntokens, x);
    load_rows(dt_from, p.dt.token, ntokens, dt);
    if constexpr (kGroupsAhead) {
#pragma unroll
      for (int i = 0; i < kOwnGroupPacks; ++i) groups[i] = load_group(first, i);
    }
    if (p.seq_idx != nullptr) {
      const int own = static_cast<int>(threadIdx.x) % kWarpSize;
      next_index = own < ntokens ? p.seq_idx[row * p.seq_idx_row + first + own] : -1;
    }
  }

  // Every warp looks at all tokens, and finds the same.
  __device__ __forceinline__ TileTokens look_at(int ntokens) {
    if (p.seq_idx == nullptr) return {(1U << ntokens) - 1, 0};
    const int own = static_cast<int>(threadIdx.x) % kWarpSize;
    const unsigned live = __ballot_sync(kFullWarp, next_index >= 0);
    const unsigned before = live & ((1U << own) - 1);
    const int neighbor_lane = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
    const std::int32_t neighbor = __shfl_sync(kFullWarp, next_index, neighbor_lane);
    const std::int32_t previous = before == 0 ? last_index : neighbor;
    const unsigned resets =
        __ballot_sync(kFullWarp, next_index >= 0 && previous >= 0 && next_index != previous);
    if (live != 0) {
      if (first_index < 0) {
        first_index = __shfl_sync(kFullWarp, next_index, __ffs(static_cast<int>(live)) - 1);
      }
      last_index = __shfl_sync(kFullWarp, next_index, 31 - __clz(static_cast<int>(live)));
    }
    restarts = restarts || resets != 0;
    return {live, resets};
  }

  // dt and dt x to shared memory.
  __device__ __forceinline__ void stage_steps(unsigned live) {
    float steps[kPacks][kScanVector];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      to_floats(dt[i], steps[i]);
#pragma unroll
      for (int j = 0; j < kScanVector; ++j) steps[i][j] += bias[j];
    }
    if (p.dt_softplus) {
#pragma unroll
      for (auto& of_pack : steps) {
#pragma unroll
        for (float& step : of_pack) step = scan_softplus<T>(step);
      }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int t = first_row + i * kRows;
      if (!has_pack(i)) continue;
      float products[kScanVector];
      to_floats(x[i], products);
#pragma unroll
      for (int j = 0; j < kScanVector; ++j) products[j] *= steps[i][j];
      if (live != kWholeTile && (live >> t & 1) == 0) {
#pragma unroll
        for (int j = 0; j < kScanVector; ++j) products[j] = steps[i][j] = 0.0F;
      }
      auto* to = reinterpret_cast<float4*>(&tile.steps[t][column]);
      to[0] = make_float4(steps[i][0], products[0], steps[i][1], products[1]);
      to[1] = make_float4(steps[i][2], products[2], steps[i][3], products[3]);
    }
  }

  // B and C to shared memory.
  __device__ __forceinline__ void stage_groups(std::int64_t first, unsigned live) {
#pragma unroll(kGroupsAhead ? kOwnGroupPacks : 4)
    for (int i = 0; i < kOwnGroupPacks; ++i) {
      const int number = static_cast<int>(threadIdx.x) + i * kScanThreads;
      if (number >= kGroupPacks) break;
      const int t = number / kGroupColumns % kScanTokens;
      const int n = number % kGroupColumns * kScanVector;
      const bool is_C = number >= kScanTokens * kGroupColumns;
      float values[kScanVector];
      if constexpr (kGroupsAhead) {
        to_floats(groups[i], values);
      } else {
        to_floats(load_group(first, i), values);
      }
      if (live != kWholeTile && (live >> t & 1) == 0) {
#pragma unroll
        for (float& value : values) value = 0.0F;
      }
      store_floats(is_C ? &tile.C[t][n] : &tile.B[t][n], values);
    }
  }

  // y from its partial sums.
  __device__ __forceinline__ void finish(int ntokens, unsigned live,
                                         const Pack<T, kScanVector> (&x_of_tile)[kPacks]) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int t = first_row + i * kRows;
      if (t >= ntokens) continue;
      float sums[kScanVector] = {};
#pragma unroll
      for (int l = 0; l < kLanes; ++l) {
        float part[kScanVector];
        load_floats(&tile.y[t][l][column], true, part);
#pragma unroll
        for (int j = 0; j < kScanVector; ++j) sums[j] += part[j];
      }
      float x_values[kScanVector];
      to_floats(x_of_tile[i], x_values);
      if (p.D != nullptr) {
#pragma unroll
        for (int j = 0; j < kScanVector; ++j) sums[j] = fmaf(D[j], x_values[j], sums[j]);
      }
      if (p.z.data != nullptr) {
        float gates[kScanVector];
        to_floats(z[i], gates);
#pragma unroll
        for (int j = 0; j < kScanVector; ++j) sums[j] *= silu<T>(gates[j]);
      }
      if ((live >> t & 1) == 0) {
#pragma unroll
        for (float& sum : sums) sum = 0.0F;
      }
      store_some(y_to + i * kRows * p.y.token, sums, ncolumns, channel_vectors());
    }
    y_to += kScanTokens * p.y.token;
  }

  // ---- scan -------------------------------------------------------------------------------------

  // Where the thread finds a token in shared memory. Moved along, not computed anew: addresses
  // would be a tenth of the scan's instructions.
  struct Place {
    const float2* step;
    const float* B;
    const float* C;
    float* y;

    __device__ __forceinline__ Place(Tile& tile, int channel, int lane)
        : step(&tile.steps[0][channel]),
          B(&tile.B[0][4 * lane]),
          C(&tile.C[0][4 * lane]),
          y(&tile.y[0][lane][channel]) {}
    __device__ __forceinline__ void move(int tokens) {
      step += tokens * Tile::kChannels;
      B += tokens * Tile::kDState;
      C += tokens * Tile::kDState;
      y += tokens * kLanes * Tile::kRow;
    }
  };

  // The token that lies `t` after the place.
  __device__ __forceinline__ void advance(const Place& place, int t) {
    const float2 step = place.step[t * Tile::kChannels];
    float sum = 0.0F;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int n = t * Tile::kDState + q * 4 * kLanes;
      float B[4];
      load_floats(place.B + n, true, B);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& state = h[4 * q + k];
        state = fmaf(scan_decay<T>(step.x * A[4 * q + k]), state, step.y * B[k]);
      }
      if constexpr (kOutputs) {
        float C[4];
        load_floats(place.C + n, true, C);
        float part = C[0] * h[4 * q];
#pragma unroll
        for (int k = 1; k < 4; ++k) part = fmaf(C[k], h[4 * q + k], part);
        sum = q == 0 ? part : sum + part;
      }
    }
    if constexpr (kOutputs) {
      place.y[t * kLanes * Tile::kRow] = sum;
    } else {
      steps_of_tile += step.x;
    }
  }

  // The tokens of the tile, four by four; those past the end change nothing.
  __device__ __forceinline__ void scan(int ntokens, unsigned resets) {
    constexpr int kAtOnce = 4;
    steps_of_tile = 0.0F;
    Place place(tile, own_channel, lane);
#pragma unroll 1
    for (int first = 0; first < ntokens; first += kAtOnce) {
      if ((resets & ((1U << kAtOnce) - 1)) == 0) {
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) advance(place, t);
        place.move(kAtOnce);
      } else {
#pragma unroll 1
        for (int t = 0; t < kAtOnce; ++t) {
          if ((resets >> t & 1) != 0) {
#pragma unroll
            for (float& state : h) state = 0.0F;
          }
          advance(place, 0);
          place.move(1);
        }
      }
      resets >>= kAtOnce;
    }
  }

  // ---- end --------------------------------------------------------------------------------------

  __device__ __forceinline__ void store_final() const {
    if (p.final.data == nullptr) return;
    float* to =
        p.final.data + sequence * p.final.sequence + (channel + own_channel) * p.final.channel;
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      if (has_state(k)) to[state_at(k)] = h[k];
    }
  }

  __device__ __forceinline__ void store_segment() const {
    const std::int64_t slot = segment_slot(segment);
    const std::int64_t at = slot * p.d_inner + channel + own_channel;
    float* to = p.segment_states + (at + p.d_inner) * p.dstate;  // before the next segment
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      if (has_state(k)) to[state_at(k)] = h[k];
    }
    if (lane == 0 && own_channel < nchannels)
      p.segment_steps[at] = static_cast<float>(sum_of_steps);
    if (p.seq_idx != nullptr && channel == 0 && threadIdx.x == 0) {
      p.segment_marks[slot] = {first_index, last_index, restarts ? 1 : 0};
    }
  }

  const ScanParams& p;
  Tile& tile;
  std::int64_t sequence, segment, group, row;
  std::int64_t begin, end;  // tokens
  std::int64_t channel;     // the first of the block
  int nchannels;            // of the block
  // As the threads of elements:
  int column, ncolumns;  // the thread's first channel, and how many there are from it on
  int first_row;         // its first token of a tile
  const T *x_from, *dt_from, *z_from;  // its first elements of the next tile
  T* y_to;
  float bias[kScanVector], D[kScanVector];
  Pack<T, kScanVector> x[kPacks], dt[kPacks], z[kPacks];
  Pack<T, kScanVector> groups[kGroupsAhead ? kOwnGroupPacks : 1];
  std::int32_t next_index = 0;  // of the lane's token of the next tile
  std::int32_t first_index = -1, last_index = -1;
  bool restarts = false;
  // As the threads of the scan:
  int own_channel, lane;
  float A[kStates], h[kStates];
  float steps_of_tile = 0.0F;
  double sum_of_steps = 0.0;  // a float would stop growing as it should after some 10^5 tokens
};

/// Blocks of a multiprocessor whose threads' registers suffice without spills. At 16 states in
/// 16-bit types they are as many as a sequence of 5,120 channels for each of 8 needs to be on the
/// device all at once.
template <typename T, int kLanes, int kStates>
constexpr int kResidentScanBlocks = kStates == 16                  ? 3
                                    : sizeof(T) == sizeof(float)   ? (kLanes == 1 ? 3 : 4)
                                    : (kLanes == 1 || kLanes == 8) ? 4
                                                                   : 5;

template <typename T, int kLanes, int kStates, bool kOutputs, bool kVectors>
__global__ void __launch_bounds__(kScanThreads, kResidentScanBlocks<T, kLanes, kStates>)
    scan_kernel(const __grid_constant__ ScanParams p) {
  __shared__ ScanTile<kLanes, kStates> tile;
  ScanBlock<T, kLanes, kStates, kOutputs, kVectors>(p, tile).run();
}

}  // namespace adder::cuda
