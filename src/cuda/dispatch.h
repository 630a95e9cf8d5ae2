#pragma once

// From what is known at run time to a kernel's arithmetic; needs no CUDA header, and nvcc cannot
// read it.

#include "core/dispatch.h"
#include "cuda/arithmetic.h"

namespace adder::cuda {

/// Calls `visitor(TypeTag<A>{})` with the arithmetic for inputs of a dtype.
template <typename Visitor>
decltype(auto) visit_arithmetic(DType dtype, bool allow_tf32, Visitor&& visitor) {
  if (dtype == DType::f32 && allow_tf32) return visitor(TypeTag<Tf32>{});
  return visit_float(dtype, std::forward<Visitor>(visitor));
}

/// Calls `visitor(TypeTag<T>{})` with the type of recurrent states of a dtype.
template <typename Visitor>
decltype(auto) visit_state(DType dtype, Visitor&& visitor) {
  if (dtype == DType::bf16) return visitor(TypeTag<bf16>{});
  return visitor(TypeTag<float>{});
}

}  // namespace adder::cuda
