#pragma once

// Kernels that do nothing but multiply matrices from registers and shared memory, as fast as the
// device can.

#include <string_view>

#include "adder/cuda_stream.h"
#include "adder/dtype.h"

namespace adder::bench {

struct MatrixKernel {
  std::string_view instruction;
  /// Every warp (or warpgroup) adds up a · bᵀ over and over: a is (kRows, depth), b (columns,
  /// depth), both row-major.
  static constexpr int kRows = 64;
  int columns;
  int depth;
  /// Products a · bᵀ per multiprocessor and iteration.
  int products_per_multiprocessor;
  /// Writes iterations · a · bᵀ (kRows, columns) to `d`. All pointers are device memory, `a` and
  /// `b` aligned to 16 bytes.
  void (*launch)(const bf16* a, const bf16* b, float* d, int iterations, int multiprocessors,
                 cuda::Stream stream);
};

/// With mma.sync, from compute capability 8.0 on.
const MatrixKernel& warp_matrix_kernel();
/// With wgmma, on compute capability 9.0 alone.
const MatrixKernel& warpgroup_matrix_kernel();

}  // namespace adder::bench
