#pragma once

// What cuda.cc, which chooses, and cuda.cu, which computes, tell each other; needs no CUDA header.

#include <cstddef>
#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda::step {

/// x is of type X, the weight of W, y of Y. Strides are between rows, in elements.
template <typename X, typename W, typename Y>
struct Params {
  const W* weight;
  std::int64_t weight_stride;
  const float* bias;  ///< or null
  Y* y;
  std::int64_t y_stride;
  int batch, in, out;

  const X* x;  ///< null with a norm of the residual alone
  std::int64_t x_stride;

  // A norm: residual is not null.
  const float* residual;
  std::int64_t residual_stride;
  float* new_residual;  ///< or null
  std::int64_t new_residual_stride;
  X* norm_y;  ///< or null
  std::int64_t norm_y_stride;
  // A gated norm: z is not null.
  const X* z;
  std::int64_t z_stride;
  int ngroups;
  bool norm_before_gate, normalize;
  // Of both.
  const float* norm_weight;  ///< or null
  float epsilon;

  // A convolution: conv_channels is not 0.
  int conv_begin, conv_channels, conv_width;
  const float* conv_weight;
  std::int64_t conv_channel_stride, conv_tap_stride;
  const float* conv_bias;  ///< or null
  float* conv_state;
  std::int64_t conv_sequence_stride, conv_row_stride;
  X* conv_y;
  std::int64_t conv_y_stride;
};

/// Rows of the weight that a block has at most, and its shared memory.
struct Plan {
  int blocks;
  int rows_per_block;
  std::size_t shared_bytes;
};
Plan plan_of(std::int64_t batch, std::int64_t in, std::int64_t out, int multiprocessors);

template <typename X, typename W, typename Y>
void launch(const Params<X, W, Y>& params, const Plan& plan, bool overlap, Stream stream);

}  // namespace adder::cuda::step
