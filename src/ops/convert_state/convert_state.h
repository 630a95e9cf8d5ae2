#pragma once

// The recurrent states of a batch from one dtype to another: what a pass over many tokens, which
// works on float32 states, does before and after if they are held in bf16. For CUDA devices alone.
//
//   to = from

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"

namespace adder {

/// Both tensors are in the memory of one CUDA device, contiguous, and do not overlap.
struct ConvertStateArgs {
  /// (nsequences, nheads, headdim, dstate) or (nsequences, d_inner, dstate), f32 or bf16.
  ConstTensorView from;
  /// Of the same shape, f32 or bf16.
  TensorView to;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented.
void validate(const ConvertStateArgs& args);

namespace cuda {
/// Puts the work on the stream and returns. What bf16 can hold keeps its value, so a state that
/// went from bf16 to f32 and was not changed comes back with its bits; else one of the two
/// neighbours is stored at random, as in ssd_step. Results do not depend on other sequences.
void convert_state(const ConvertStateArgs& args, Stream stream);
}  // namespace cuda

}  // namespace adder
