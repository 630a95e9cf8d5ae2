#pragma once

// The gate of a gated MLP block, between its two matrices.
//
//   y_t = x_t · silu(gate_t)             silu(v) = v / (1 + e^-v)
//
// Source: Shazeer, "GLU Variants Improve Transformer" (2020), equation 6. x and gate are usually
// the two halves of one matrix product, in an order that depends on the checkpoint (Mamba's fc1 has
// the gate second, its in_proj has it first), so they are two views here.

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of swiglu. Rows are tokens, contiguous, with free strides between them. Every tensor
/// is in the same memory, the host's or that of one CUDA device, and of one dtype: f32, on a CUDA
/// device f32, bf16 or f16.
struct SwigluArgs {
  /// (ntokens, d_mlp).
  ConstTensorView x;
  /// (ntokens, d_mlp).
  ConstTensorView gate;
  /// (ntokens, d_mlp). May be `x` or `gate` itself; otherwise it must not overlap them.
  TensorView y;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented.
void validate(const SwigluArgs& args);

namespace cpu {
void swiglu(const SwigluArgs& args, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
/// Puts the work on the stream and returns. Arithmetic is float32; an element does not depend on
/// the alignment of rows. Fastest where all rows start at multiples of 16 bytes and are multiples
/// of that long.
void swiglu(const SwigluArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
