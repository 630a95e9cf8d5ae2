#pragma once

// The gate of a gated MLP block, between its two matrices.
//
//   y_t = x_t · silu(gate_t)             silu(v) = v / (1 + e^-v)
//
// Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 6. x and gate are usually
// the two halves of one matrix product, in an order that depends on the checkpoint (Mamba's fc1 has
// the gate second, its in_proj has it first), so they are two views here.

#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of swiglu. Rows are tokens, contiguous, with free strides between them.
struct SwigluArgs {
  /// (ntokens, d_mlp) f32.
  ConstTensorView x;
  /// (ntokens, d_mlp) f32.
  ConstTensorView gate;
  /// (ntokens, d_mlp) f32. May be `x` or `gate` itself; otherwise it must not overlap them.
  TensorView y;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented.
void validate(const SwigluArgs& args);

namespace cpu {
void swiglu(const SwigluArgs& args, ThreadPool& pool);
}  // namespace cpu

}  // namespace adder
