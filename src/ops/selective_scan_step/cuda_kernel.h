#pragma once

// What cuda.cc hands to the kernel of cuda.cu. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda {

template <typename Void>
struct ScanStepTensor {
  Void* data;                     ///< or null
  std::int64_t sequence, column;  ///< strides; column: of a group, 1 for channels
};

struct ScanStepParams {
  ScanStepTensor<const void> x, dt, z, B, C;
  ScanStepTensor<void> y;
  const float* A;
  std::int64_t A_stride;
  const float* D;        ///< or null
  const float* dt_bias;  ///< or null
  void* state;
  std::int64_t state_sequence, state_channel;  ///< strides
  std::int64_t batch, d_inner, group_size, dstate;
  bool dt_softplus;
  bool group_vectors;  ///< with `vectors`: rows of B and C can be read four elements at a time
};

/// T is the dtype of x, State that of the state. `vectors`: rows of A and of the state can be moved
/// four elements at a time.
template <typename T, typename State>
void launch_scan_step(const ScanStepParams& params, bool vectors, Stream stream);

}  // namespace adder::cuda
