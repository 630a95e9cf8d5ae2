#pragma once

#include <cstdint>

#include "adder/dtype.h"
#include "core/cpu_tier.h"

namespace adder::cpu {

/// Each widens `n` elements to float32.
struct EmbeddingKernels {
  void (*widen_f32)(const float* row, float* y, std::int64_t n);
  void (*widen_bf16)(const bf16* row, float* y, std::int64_t n);
  void (*widen_f16)(const f16* row, float* y, std::int64_t n);

  void widen(const float* row, float* y, std::int64_t n) const { widen_f32(row, y, n); }
  void widen(const bf16* row, float* y, std::int64_t n) const { widen_bf16(row, y, n); }
  void widen(const f16* row, float* y, std::int64_t n) const { widen_f16(row, y, n); }
};

ADDER_TIERED_KERNELS(EmbeddingKernels, embedding_kernels)

}  // namespace adder::cpu
