// Work per token: no flops, one row of weight read and one of y written. Rows of distinct tokens
// lie far apart, so a row is the unit of a thread.

#include "ops/embedding/kernels.h"

#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

template <typename T>
void widen(const T* row, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, load(row + i));
  if (i < n) {
    const int tail = static_cast<int>(n - i);
    store_n(y + i, load_n(row + i, tail), tail);
  }
}

}  // namespace

const EmbeddingKernels& embedding_kernels() {
  static constexpr EmbeddingKernels kKernels{widen<float>, widen<bf16>, widen<f16>};
  return kKernels;
}

}  // namespace adder::cpu::ADDER_TIER
