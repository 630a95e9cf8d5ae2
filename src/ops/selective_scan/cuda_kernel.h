#pragma once

// What cuda.cc, which checks and plans, hands to the kernels of cuda.cu. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda {

inline constexpr int kScanThreads = 128;  ///< of a block
inline constexpr int kScanTokens = 16;    ///< of a tile

/// How many threads share the states of a channel, and how many states each has.
struct ScanLanes {
  int lanes;
  int states;

  constexpr explicit ScanLanes(std::int64_t dstate) : lanes(1), states(dstate > 64 ? 16 : 8) {
    while (lanes * states < dstate) lanes *= 2;
  }
  constexpr int channels_per_block() const { return kScanThreads / lanes; }
};

template <typename Void>
struct ScanTensor {
  Void* data;                      ///< or null
  std::int64_t row, token, group;  ///< strides; `group` only of B and C
};

template <typename Float>
struct ScanStates {
  Float* data;                     ///< or null: zeros, or not wanted
  std::int64_t sequence, channel;  ///< strides
};

/// What seq_idx says of one segment of a sequence.
struct SegmentMarks {
  std::int32_t first, last;  ///< entries that are not padding, or -1
  std::int32_t restarts;     ///< whether the state is reset inside
};

struct ScanParams {
  ScanTensor<const void> x, dt, z, B, C;
  ScanTensor<void> y;
  const float* A;
  std::int64_t A_stride;
  const float* D;        ///< or null
  const float* dt_bias;  ///< or null
  ScanStates<const float> initial;
  ScanStates<float> final;
  const std::int32_t* cu_seqlens;  ///< or null
  const std::int32_t* seq_idx;     ///< or null
  std::int64_t seq_idx_row;        ///< stride
  std::int64_t nsequences, seqlen, d_inner, ngroups, dstate;
  bool dt_softplus;
  bool channel_vectors;  ///< rows of x, dt, z and y can be moved four channels at a time
  bool state_vectors;    ///< rows of B and C can be read four states at a time

  // Where sequences are cut into segments. The state before segment i takes the place of what the
  // segment before it leaves. The initial state is kept too: the last segment may write the final
  // state over it before the first segment begins.
  std::int64_t nsegments;       ///< of each sequence
  float* segment_states;        ///< (nsequences, nsegments, d_inner, dstate)
  float* segment_steps;         ///< (nsequences, nsegments, d_inner): the sum of dt
  SegmentMarks* segment_marks;  ///< (nsequences, nsegments), only with seq_idx
};

/// T is the dtype of x.
template <typename T>
void launch_scan(const ScanParams& params, Stream stream);

}  // namespace adder::cuda
