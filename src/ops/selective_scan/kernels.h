#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

inline constexpr int kMaxScanLanes = 16;
/// Vectors of channels that one call works on, and states of all of them together.
inline constexpr int kMaxScanVectors = 4;
inline constexpr int kMaxScanVectorStates = 256;
/// log2(e), which turns e^v into a power of two.
inline constexpr float kScanFactor = 1.44269504088896341F;

/// A tensor seen from a block of channels: token t and channel i at data[t * stride + i].
struct ScanRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};

/// Tokens that follow one another in one sequence, for a block of channels of one group.
struct ScanSpan {
  std::int64_t ntokens;
  int nchannels;  ///< at most kMaxScanVectors vectors, whose states are at most
                  ///< kMaxScanVectorStates
  int dstate;
  ScanRows x;
  ScanRows dt;
  ScanRows z;  ///< null data: none
  ScanRows B;  ///< (dstate) per token, of the channels' group
  ScanRows C;
  const float* D;        ///< of the channels; may be null
  const float* dt_bias;  ///< of the channels; may be null
  bool dt_softplus;
  const float* decay;  ///< A · kScanFactor, packed
  float* state;        ///< packed, updated
  float* y;
  std::int64_t y_stride;
};

/// "Packed" is (vectors, dstate, lanes), zero in lanes that have no channel.
struct SelectiveScanKernels {
  int lanes;  ///< channels of a vector, at most kMaxScanLanes
  void (*scan)(const ScanSpan& span);
  /// Packs `nchannels` rows of `dstate` numbers, each times `factor`.
  void (*pack)(const float* rows, std::int64_t stride, int nchannels, int dstate, float factor,
               float* packed);
  void (*unpack)(const float* packed, int nchannels, int dstate, float* rows, std::int64_t stride);
};

ADDER_TIERED_KERNELS(SelectiveScanKernels, selective_scan_kernels)

}  // namespace adder::cpu
