#pragma once

// What cuda.cc, which chooses, and cuda.cu, which computes, tell each other.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda::conv {

/// Pointers into device memory; strides count elements.
template <typename T>
struct Params {
  const T* x;
  std::int64_t x_stride;
  T* y;
  std::int64_t y_stride;
  const float* weight;
  std::int64_t weight_channel_stride;
  std::int64_t weight_tap_stride;
  bool weight_aligned;  ///< channels of a tap are adjacent, taps start at multiples of 16 bytes
  const float* bias;    ///< may be null
  bool bias_aligned;    ///< to 16 bytes
  float* state;         ///< may be null
  std::int64_t state_sequence_stride;
  std::int64_t state_row_stride;
  const std::int32_t* cu_seqlens;  ///< may be null
  const std::int32_t* seq_idx;     ///< may be null
  std::int64_t ntokens;
  std::int64_t channels;
  std::int64_t nsequences;
  bool silu;
  // Chosen by `launch`.
  std::int64_t run_tokens;      ///< tokens that a warp walks through, at most 2^30
  std::uint32_t warps_per_row;  ///< warps that share the channels of a token
  bool save_states;             ///< else a second kernel does
};

/// A lane takes one channel, or a vector of them: then channels must be a multiple of the vector's
/// length and all rows aligned to 16 bytes. `width` is 2 to 4 for vectors.
template <typename T>
void launch(Params<T> params, int width, bool vectorized, int multiprocessors, Stream stream);

/// Channels of a vector.
template <typename T>
inline constexpr int kConvVector = 16 / static_cast<int>(sizeof(T));

}  // namespace adder::cuda::conv
