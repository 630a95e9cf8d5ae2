#pragma once

// What cuda.cc, which builds programs, and hopper.cu, which runs them, tell each other. Needs no
// CUDA header.
//
// Offsets are 32-bit numbers of elements: a program's code is gone through once for each of its
// operations, so that what counts is how little of it there is.

#include <cstdint>
#include <type_traits>

#include "adder/cuda_stream.h"
#include "adder/dtype.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::cuda::program {

/// Warps that multiply; one more asks for weights.
inline constexpr int kWarps = 8;
/// Others take steps of states while a projection is multiplied on.
inline constexpr int kSideWarps = 3;
inline constexpr int kMostRowsBeside = 32 * kSideWarps;  ///< one a thread
/// Rows of a weight and elements of each that a matrix instruction multiplies.
inline constexpr int kTileRows = 16;
inline constexpr int kStep = 16;
/// Rows in shared memory begin 16 bytes of the banks after one another, so that a matrix
/// instruction's operands, 16 bytes from each of eight rows, meet no bank twice.
constexpr int row_bytes(int elements) { return (2 * elements + 127) / 128 * 128 + 16; }
/// Elements of a row that are copied at once: memory is fastest at long runs.
inline constexpr int kMostPiece = 2560;
/// A stage has room for so many rows of them, or more that are shorter.
inline constexpr int kStageRows = 4;
inline constexpr int kStageBytes = kStageRows * row_bytes(kMostPiece);
inline constexpr int kMaxStages = 16;
/// Those of a tile, at most, are in the ring at the same time.
inline constexpr int kFewestStages = kTileRows / kStageRows;
/// Stages whose copies are under way at a time. More would not come sooner, and whatever else is
/// asked of memory, the counter of blocks above all, would wait behind them.
inline constexpr int kStagesUnderWay = 2;
/// Tiles whose sums shared memory has room for.
inline constexpr int kMostRoundTiles = 12;
inline constexpr int kConvWidth = 4;      ///< the most
inline constexpr int kMostColumns = 128;  ///< of a head's state
inline constexpr int kWarpRows = 4;       ///< rows of it that a warp has at a time
/// Channels of heads that a block can have beside a projection, and what is known of each. Their
/// heads are at most a warp's lanes.
inline constexpr int kMostChannels = 64;
inline constexpr int kChannelBytes = 16;
inline constexpr int kFewestHeadChannels = 3;

/// v in float32 is the sum of so many bf16 numbers, to the last bit but rounding; 16 bits do for
/// what was rounded to bf16.
template <typename X>
inline constexpr int kParts = std::is_same_v<X, float> ? 3 : 2;

/// What an exchanged number is stored as, see exchange.cuh.
template <typename X>
using ExchangedNumber =
    std::conditional_t<std::is_same_v<X, float>, unsigned long long, std::uint32_t>;

/// Where an instruction gives its results, in numbers, and which of so many that take turns there
/// it is in a launch.
struct Link {
  std::int32_t at;
  std::uint32_t turn, turns;
};

/// `mixer`: a projection, the step of the heads that it makes all inputs of, and the gate.
enum class Kind : std::int32_t { linear, mixer, ssd, scan };

/// A row of a matrix for each sequence, `row` elements apart; data may be null.
template <typename T>
struct Rows {
  T* data;
  std::int32_t row;
};

enum class Before : std::int32_t {
  nothing,
  norm,
  gate,          ///< x · silu(z), then perhaps the norm of all of it
  grouped_norm,  ///< the same, norms of groups
  norm_gate      ///< norms of groups of x, then · silu(z)
};

/// Adjacent rows of a weight, spread over the blocks: block b has `rows` of them, from
/// first + b · rows + min(b, extra) on, and one more if b < extra.
struct Spread {
  std::int32_t first, rows, extra;
};

/// A projection, see linear_step.
template <typename X>
struct Linear {
  const bf16* weight;
  std::int32_t weight_row;
  std::int32_t batch, in;
  /// In the order in which a block multiplies them. Those of a mixer: B, C and dt, which all blocks
  /// need; x; the others. Else the last has all.
  Spread shared, channels, others;
  std::int32_t piece;            ///< elements of a row that are copied at once
  std::int32_t pieces;           ///< of a row
  std::int32_t log2_stage_rows;  ///< of 4, 8 or 16
  std::int32_t stage_row;        ///< bytes between rows in a stage

  Before before;
  bool is_scaled;  ///< results by 1 / rms(v)
  bool y_is_float;
  float epsilon;
  std::int32_t group_size;
  float inverse_size;  ///< 1 / the columns of a norm
  Rows<const X> x, z;
  Rows<const float> residual;
  Rows<float> new_residual;
  Rows<X> norm_y;
  const float* norm_weight;

  /// x, or x · silu(z) with a gate, is what the instruction before gives.
  bool takes;
  /// The result is given to the next one in place of being stored to y.
  bool gives;
  std::int32_t given;  ///< numbers of a sequence that it gives, or a mixer does
  /// The residual is this block's own copy, and so is the new one, in Params::residuals.
  bool takes_residual, keeps_residual;

  const float* bias;
  Rows<void> y;

  std::int32_t conv_begin, conv_channels, conv_width;
  std::int32_t conv_channel_stride, conv_tap_stride;
  const float* conv_weight;
  const float* conv_bias;
  Rows<float> conv_state;
  std::int32_t conv_state_row;  ///< between steps in time; conv_state.row is between sequences
  Rows<X> conv_y;
};

/// A step of heads, see ssd_step. The state has `rows` rows: channels of heads of sequences.
struct Heads {
  struct Input {
    const void* data;          ///< or null
    std::int32_t row, column;  ///< strides: of sequences, of heads or groups
  };
  Input x, B, C, z, dt;
  void* y;
  std::int32_t y_row, y_column;
  const float* A;
  const float* dt_bias;
  const float* D;
  float* state;
  std::int32_t state_sequence, state_head, state_channel;
  std::int32_t nheads, heads_per_group, headdim, dstate;
  std::int32_t rows;
  DtOptions dt_options;
  bool dt_is_float, D_has_headdim;
  std::int32_t stage_rows;  ///< rows of the state that a stage has room for
  /// Of a mixer, which gives y · silu(z) and then what its own blocks need for the heads: where
  /// that begins, how much it is, and where B, C and dt begin in it.
  std::int32_t exchange, exchange_size, exchange_B, exchange_C, exchange_dt;
};

/// A step of channels, see selective_scan_step.
template <typename X>
struct Channels {
  Rows<const X> x, dt, z, B, C;
  std::int32_t B_column, C_column;
  Rows<X> y;
  const float* A;
  const float* D;
  const float* dt_bias;
  Rows<float> state;
  std::int32_t A_row, state_channel;
  std::int32_t batch, d_inner, group_size, dstate;
  bool dt_softplus, group_vectors;
};

template <typename X>
struct alignas(16) Instruction {
  Kind kind;
  /// Whether it begins and ends with a meeting of all blocks: what was before it, and what comes
  /// after it, need not read what another instruction has stored.
  bool enters = false;
  bool leaves = false;
  /// Of the one before, if this one takes, and its own, if it gives.
  Link takes_from{}, gives_to{};
  Linear<X> linear{};  ///< of a linear and a mixer
  Heads heads{};       ///< of a mixer and an ssd
  Channels<X> channels{};
};

/// Shared memory that the kernel has besides: barriers, and two instructions for each kind of
/// warps.
inline constexpr int kStaticBytes = 5632;

/// Where things are in shared memory, in bytes.
struct Layout {
  std::int32_t sums;      ///< of the squares of v, a float a warp
  std::int32_t channels;  ///< of a mixer's heads that are the block's, kChannelBytes each
  std::int32_t slots;     ///< of sums of products
  std::int32_t v;         ///< kParts rows of each sequence
  std::int32_t v_row;     ///< bytes from one to the next
  std::int32_t stages;    ///< the first of nstages
  std::int32_t nstages;
  std::int32_t round_tiles;  ///< that there are slots for
};

template <typename X>
struct Params {
  const Instruction<X>* instructions;
  std::int32_t count;
  /// Blocks that came to a point where all wait for all, since ever, and such points a launch.
  unsigned long long* arrivals;
  std::int32_t meetings;
  bool is_linked;  ///< some instructions give and take
  ExchangedNumber<X>* exchange;
  /// So many floats for each block.
  float* residuals;
  std::int32_t residual_size;
  Layout layout;
};

/// Sequences that there are kernels for: 1, 2 or 4.
constexpr int kernel_batch(int batch) { return batch <= 2 ? batch : 4; }

/// Floats of a tile's sums: from every warp a row of 16 for each of the `rows` of v.
constexpr int slots_of_tile(int rows) { return kWarps * rows * kTileRows; }

/// One block for each of `blocks` multiprocessors, all at once.
template <typename X>
void launch(const Params<X>& params, int batch, int blocks, std::int64_t shared_bytes,
            Stream stream);

}  // namespace adder::cuda::program
