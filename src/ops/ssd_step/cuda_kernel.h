#pragma once

// What cuda.cc hands to the kernel of cuda.cu. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::cuda {

template <typename Void>
struct StepTensor {
  Void* data;                ///< or null
  std::int64_t row, column;  ///< strides; row: sequence; column: head or group
};

struct StepParams {
  StepTensor<const void> x, B, C, z, dt;
  StepTensor<void> y;
  bool dt_is_float;
  const float* A;
  const float* dt_bias;  ///< or null
  DtOptions dt_options;
  const float* D;  ///< or null
  bool D_has_headdim;
  void* state;
  std::int64_t state_sequence, state_head, state_p;  ///< strides
  std::int64_t batch, nheads, heads_per_group, headdim, dstate;
};

/// T is the dtype of x, State that of the state. `vectors`: rows of the state can be moved four
/// elements at a time.
template <typename T, typename State>
void launch_step(const StepParams& params, bool vectors, Stream stream);

}  // namespace adder::cuda
