#pragma once

#include <cstdint>

#include "core/cpu_tier.h"

namespace adder::cpu {

/// A tensor seen from one vector of channels: element of token t and lane i at data[t * stride +
/// i].
struct ScanRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};

/// Tokens that follow one another in one sequence, for one vector of channels.
struct ScanSpan {
  std::int64_t ntokens;
  int nchannels;  ///< 1 to SelectiveScanKernels::lanes
  int dstate;
  ScanRows x;
  ScanRows dt;
  ScanRows z;  ///< null data: none
  ScanRows B;  ///< (dstate) per token, of the channels' group
  ScanRows C;
  const float* D;        ///< of the channels; may be null
  const float* dt_bias;  ///< of the channels; may be null
  bool dt_softplus;
  const float* decay;  ///< (dstate, lanes): A · kScanFactor, packed
  float* state;        ///< (dstate, lanes), packed, updated
  float* y;
  std::int64_t y_stride;
};

/// "Packed" is (dstate, lanes): state n of lane i at n * lanes + i, zero in lanes that have no
/// channel.
struct SelectiveScanKernels {
  /// Channels of a vector, at most kMaxScanLanes.
  int lanes;
  void (*scan)(const ScanSpan& span);
  /// Packs `nchannels` rows of `dstate` numbers, each times `factor`.
  void (*pack)(const float* rows, std::int64_t stride, int nchannels, int dstate, float factor,
               float* packed);
  void (*unpack)(const float* packed, int nchannels, int dstate, float* rows, std::int64_t stride);
};

inline constexpr int kMaxScanLanes = 16;
/// log2(e), which turns e^v into a power of two.
inline constexpr float kScanFactor = 1.44269504088896341F;

ADDER_TIERED_KERNELS(SelectiveScanKernels, selective_scan_kernels)

}  // namespace adder::cpu
