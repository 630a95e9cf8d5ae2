#pragma once

// Questions about views that decide which kernel can take them; needs no CUDA header.

#include <cstddef>
#include <cstdint>
#include <optional>

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

/// Where the columns of `part` begin among those of `whole`, matrices with the same rows and dtype;
/// none if they are not there.
inline std::optional<std::int64_t> column_within(const ConstTensorView& whole,
                                                 const ConstTensorView& part) {
  const auto size = static_cast<std::ptrdiff_t>(size_of(whole.dtype));
  const auto* first = static_cast<const std::byte*>(whole.data);
  const auto* at = static_cast<const std::byte*>(part.data);
  if (part.dtype != whole.dtype || at < first || at >= first + whole.dim(1) * size ||
      (whole.dim(0) > 1 && part.stride(0) != whole.stride(0))) {
    return std::nullopt;
  }
  return (at - first) / size;
}

}  // namespace adder::cuda
