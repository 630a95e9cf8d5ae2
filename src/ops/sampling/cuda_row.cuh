#pragma once

// A row of logits as the kernel of this folder sees it: penalized, and as integers in their order.

#include <cstdint>

#include "ops/sampling/cuda_kernel.h"

namespace adder::cuda::sampling {

/// Greater for a greater logit, equal for equal ones, never 0, which stands for no token.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit == 0 ? 0.0F : logit);  // no zero is negative
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/// Four adjacent tokens.
struct Four {
  float logits[4];
};

struct Row {
  const float* logits;
  int vocab_size;
  bool aligned;
  float penalty;
  const std::uint32_t* recent;  ///< a bit for each token that is penalized; null: none is

  /// The logits of tokens id to id + 3 as they are; -inf beyond the vocabulary. `id` is a multiple
  /// of four.
  __device__ __forceinline__ Four raw(int id) const {
    if (aligned && id + 4 <= vocab_size) {
      const float4 four = *reinterpret_cast<const float4*>(logits + id);
      return {four.x, four.y, four.z, four.w};
    }
    Four out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.logits[i] = id + i < vocab_size ? logits[id + i] : __uint_as_float(0xff800000u);
    }
    return out;
  }

  /// With the repeat penalty. A token of four that is beyond the vocabulary is never a recent one.
  __device__ __forceinline__ Four penalized(int id, Four four) const {
    if (recent == nullptr || id >= vocab_size) return four;
    const std::uint32_t bits = recent[id / 32] >> (id % 32) & 15u;
    if (bits == 0) return four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float logit = four.logits[i];
      if ((bits >> i & 1u) == 0) continue;
      four.logits[i] = logit > 0 ? __fdiv_rn(logit, penalty) : __fmul_rn(logit, penalty);
    }
    return four;
  }

  /// Their keys, 0 beyond the vocabulary.
  __device__ __forceinline__ void keys(int id, std::uint32_t (&out)[4]) const {
    const Four four = penalized(id, raw(id));
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = id + i < vocab_size ? key_of(four.logits[i]) : 0;
  }
};

/// The words of Row::recent.
__host__ __device__ constexpr int recent_words(int vocab_size) { return (vocab_size + 31) / 32; }

}  // namespace adder::cuda::sampling
