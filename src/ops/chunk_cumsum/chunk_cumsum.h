#pragma once

// The first step of the chunked state-space dual: time steps and their prefix sums.
//
//   dt_t        = clamp(softplus(dt_raw_t + dt_bias), dt_min, dt_max)
//   a_t         = max(dt_t · A · log2(e), -1024)
//   dA_cumsum_i = Σ_{j <= i in the chunk} a_j
//
// with softplus(v) = v above 20, so that the decay from token j to token i of one chunk is
// 2^(dA_cumsum_i − dA_cumsum_j). The floor changes no result (2^-1024 is zero in float32) and keeps
// every sum small enough for differences to stay exact after a step that forgets everything.
//
// Source: Dao and Gu, "Transformers are SSMs" (2024), section 6 (segment sums of A inside chunks).

#include <limits>

#include "adder/cuda_stream.h"
#include "adder/ops/chunk_cumsum/chunk_plan.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// How a raw time step becomes dt. Shared by all operations that take one.
struct DtOptions {
  bool softplus = false;
  float min = 0.0F;  ///< limits of the clamp, after softplus; 0 <= min <= max
  float max = std::numeric_limits<float>::infinity();
};

/// All tensors and the plan are in the same memory: the host's, or that of one CUDA device.
struct ChunkCumsumArgs {
  /// (batch, seqlen, nheads) f32, any strides; on a CUDA device f32, bf16 or f16.
  ConstTensorView dt_raw;
  /// (nheads) f32, contiguous: finite and not positive.
  ConstTensorView A;
  /// (nheads) f32, contiguous, optional: added to dt_raw first.
  ConstTensorView dt_bias;
  DtOptions dt_options;
  ChunkPlan plan;
  /// (nheads, nchunks, chunk_size) f32, contiguous: tokens of a head are adjacent. Positions past a
  /// chunk's length, and padding inside of it, are zero (padded after softplus: a padding token
  /// does nothing).
  TensorView dt;
  /// (nheads, nchunks, 2, chunk_size) f32, contiguous: the prefix sum as the nearest float and the
  /// rest, sum = [0] + [1]. A single float loses up to 57 times the accuracy of the recurrence.
  /// Positions past a chunk's length repeat the last sum. Sums begin anew with each segment of a
  /// plan that has segments.
  TensorView dA_cumsum;
};

/// Throws adder::Error unless shapes, dtypes, layouts and the plan are as documented.
void validate(const ChunkCumsumArgs& args);

/// Throws adder::Error unless 0 <= min <= max.
void validate(std::string_view op, const DtOptions& options);

namespace cpu {
/// The prefix sum is accumulated in float64, token by token.
void chunk_cumsum(const ChunkCumsumArgs& args, ThreadPool& pool);

/// Throws adder::Error unless every value of `A`, in host memory, is finite and not positive.
void check_decay(std::string_view op, const ConstTensorView& A);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. The prefix sum is accumulated in float64, as a tree of
/// fixed shape. Values of A are not looked at: one that is positive or not finite spoils the
/// results of its head.
void chunk_cumsum(const ChunkCumsumArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
