#pragma once

// How kernels multiply on tensor cores; needs no CUDA header.

#include <type_traits>

namespace adder::cuda {

/// Floats of which 11 significant bits are multiplied. An arithmetic is this or a dtype, whose
/// digits all count.
struct Tf32 {};

/// The dtype of an arithmetic's numbers in memory.
template <typename A>
using ElementOf = std::conditional_t<std::is_same_v<A, Tf32>, float, A>;

}  // namespace adder::cuda
