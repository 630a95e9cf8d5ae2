#pragma once

// Embedding: each token's row of the weight matrix, widened to float32.
//
//   y_t = weight[ids_t]
//
// The rows start the residual stream, which is float32 whatever the weights are.

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of embedding. Every tensor is in the same memory: the host's, or that of one CUDA
/// device. What is f32 in host memory may be bf16 or f16 on a CUDA device where it says so.
struct EmbeddingArgs {
  /// (ntokens) i32, contiguous, each in [0, vocab_rows). On a CUDA device ids are not checked,
  /// since that would be waiting for them: a token whose id has no row gets NaN in all of its row
  /// of `y`, and nothing is read for it.
  ConstTensorView ids;
  /// (vocab_rows, d_model) f32, bf16 or f16, rows contiguous. Only the rows that are asked for are
  /// touched, so it may be a mapped file; it needs no alignment, on a CUDA device that of its
  /// dtype.
  ConstTensorView weight;
  /// (ntokens, d_model) f32, on a CUDA device f32, bf16 or f16; rows contiguous. Must not overlap
  /// `weight` or `ids`.
  TensorView y;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented and, in host memory,
/// every id has a row.
void validate(const EmbeddingArgs& args);

namespace cpu {
/// Widening is exact: the result is the same in every tier.
void embedding(const EmbeddingArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Where `y` is narrower than `weight`, or of another
/// 16-bit dtype, elements are rounded to nearest even; otherwise the result is exact. Fastest where
/// all rows start at multiples of 16 bytes and d_model is a multiple of 8.
void embedding(const EmbeddingArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
