#pragma once

// What the host's side of the fused Hopper kernel hands to its launches. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::cuda::hopper {

inline constexpr int kChunk = 64;    ///< tokens
inline constexpr int kColumns = 64;  ///< channels of a head that a warpgroup handles: a unit

/// Units of a block: the more of them are under way, the less each one's waiting costs. Registers
/// limit them.
constexpr int heads_of_block(int slices) { return slices == 1 ? 4 : slices == 2 ? 3 : 2; }

/// How a block comes by the state that its segment begins with.
enum class SegmentStart {
  handed_over,      ///< from two kernels before: end states of all segments, combined
  walked_if_short,  ///< by itself where memory is short: it walks what is left of the tokens before
  walked,           ///< always so, however far it must go
};

/// The arguments of ssd_forward, checked, and how they fall into units, blocks and segments.
struct Call {
  ConstTensorView x, dt, A, B, C, D, z, dt_bias, initial_states;
  TensorView y, final_states;
  bool add_to_y;
  DtOptions dt_options;

  std::int64_t heads_per_group, parts_per_head, blocks_per_group;
  int slices;  ///< 64 elements of dstate each
  std::int64_t segments, segment_tokens;
  SegmentStart start;
  void* segment_states;  ///< see Params in hopper_layout.cuh, or null
  float* segment_decays;
  std::int64_t parts;  ///< blocks of sequences laid end to end, or 0
  void* cuts;          ///< unsigned of each unit, and one more, with parts

  std::int64_t units_per_group() const { return heads_per_group * parts_per_head; }
  std::int64_t groups() const { return B.dim(2); }
};

void launch(const Call& call, Stream stream);

}  // namespace adder::cuda::hopper
