#pragma once

// Questions about views that decide which kernel can take them; needs no CUDA header.

#include <cstdint>

#include "adder/tensor_view.h"

namespace adder::cuda {

/// Every row (the last dimension) starts at a multiple of 16 bytes, the widest access of a thread.
inline bool rows_aligned(const ConstTensorView& view) {
  constexpr std::int64_t kBytes = 16;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % kBytes == 0;
  for (int i = 0; i + 1 < view.rank; ++i) {
    aligned = aligned && (view.dim(i) <= 1 || view.stride(i) * size % kBytes == 0);
  }
  return aligned;
}

}  // namespace adder::cuda
