#pragma once

// Embedding: each token's row of the weight matrix, widened to float32.
//
//   y_t = weight[ids_t]
//
// The rows start the residual stream, which is float32 whatever the weights are.

#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of embedding.
struct EmbeddingArgs {
  /// (ntokens) i32, contiguous, each in [0, vocab_rows).
  ConstTensorView ids;
  /// (vocab_rows, d_model) f32, bf16 or f16, rows contiguous. Only the rows that are asked for are
  /// touched, so it may be a mapped file; it needs no alignment.
  ConstTensorView weight;
  /// (ntokens, d_model) f32, rows contiguous. Must not overlap `weight`.
  TensorView y;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented and every id has a row.
void validate(const EmbeddingArgs& args);

namespace cpu {
/// Widening is exact: the result is the same in every tier.
void embedding(const EmbeddingArgs& args, ThreadPool& pool);
}  // namespace cpu

}  // namespace adder
