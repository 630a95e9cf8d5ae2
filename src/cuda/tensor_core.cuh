#pragma once

// Matrix products of a warp on tensor cores, from sm_80 on: of 16-bit operands out of shared
// memory, of one of them with another that was computed in float32, and of floats.
//
// With g = lane / 4 and t = lane % 4, a lane holds of
//   A (16 × 16)   a[0] (g, 2t)  a[1] (g + 8, 2t)  a[2] (g, 2t + 8)  a[3] (g + 8, 2t + 8)   pairs
//   B (16 × 8)    b0 (2t, g)  b1 (2t + 8, g)                          pairs, along the first index
//   D (16 × 8)    d[0], d[1] (g, 2t + {0, 1})  d[2], d[3] (g + 8, 2t + {0, 1})

#include <cstdint>

#include "cuda/arithmetic.h"
#include "cuda/async_copy.cuh"
#include "cuda/vector.cuh"

namespace adder::cuda {

/// Four 8 × 8 matrices of 16-bit elements; lane l names the row l % 8 of matrix l / 8, by its
/// address or that in shared memory. A lane gets of each matrix the pair (g, 2t).
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  ldmatrix_x4(r, to_shared(row));
}

/// Two; of lanes 16 to 31 the address does not matter.
__device__ __forceinline__ void ldmatrix_x2(std::uint32_t& r0, std::uint32_t& r1,
                                            std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(row)
               : "memory");
}

/// Four transposed matrices.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) {
  ldmatrix_x4_trans(r, to_shared(row));
}

/// d += a (16 × 8) · b (8 × 8) of tf32: floats of 11 significant bits. A lane holds of a the
/// elements (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) and of b (t, g), (t + 4, g).
__device__ __forceinline__ void mma_tf32(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t to_tf32(float v) {
  std::uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(v));
  return out;
}

/// Two floats as tf32 has them, a pair along the index that is summed over.
struct Tf32Pair {
  std::uint32_t first, second;
};

/// d += a · b of tf32 over 16 steps, which are two products of 8: the first with the elements 2t
/// and 2t + 1 of the pairs at 2t in the places t and t + 4, the second likewise with those at 2t
/// + 8.
__device__ __forceinline__ void multiply_tf32(float (&d)[4], const Tf32Pair (&a)[4], Tf32Pair b0,
                                              Tf32Pair b1) {
  mma_tf32(d, a[0].first, a[1].first, a[0].second, a[1].second, b0.first, b0.second);
  mma_tf32(d, a[2].first, a[3].first, a[2].second, a[3].second, b1.first, b1.second);
}

/// Products with float32 sums in an arithmetic (see arithmetic.h). Operands consist of pairs:
/// `Stored` is one of numbers that are as they came from memory, `Computed` one that was computed
/// in float32 and is rounded to the digits of the arithmetic, `Precise` one that keeps 11 digits at
/// least, at the price of a second product for bf16.
template <typename A>
struct TensorCore;

template <>
struct TensorCore<bf16> {
  using Stored = std::uint32_t;
  using Computed = std::uint32_t;

  static __device__ __forceinline__ Computed computed(float first, float second) {
    return Pair<bf16>::from_floats(first, second);
  }

  /// The number rounded, and what that left, rounded: 16 digits.
  struct Precise {
    std::uint32_t high, low;
  };
  static __device__ __forceinline__ Precise precise(float first, float second) {
    const std::uint32_t high = Pair<bf16>::from_floats(first, second);
    const float2 there = Pair<bf16>::to_floats(high);
    return {high, Pair<bf16>::from_floats(first - there.x, second - there.y)};
  }

  /// d += a · b
  static __device__ __forceinline__ void multiply(float (&d)[4], const Stored (&a)[4], Stored b0,
                                                  Stored b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ void multiply_computed_a(float (&d)[4], const Computed (&a)[4],
                                                             Stored b0, Stored b1) {
    multiply(d, a, b0, b1);
  }
  static __device__ __forceinline__ void multiply_computed_b(float (&d)[4], const Stored (&a)[4],
                                                             Computed b0, Computed b1) {
    multiply(d, a, b0, b1);
  }
  static __device__ __forceinline__ void multiply_precise_a(float (&d)[4], const Precise (&a)[4],
                                                            Stored b0, Stored b1) {
    multiply(d, {a[0].low, a[1].low, a[2].low, a[3].low}, b0, b1);
    multiply(d, {a[0].high, a[1].high, a[2].high, a[3].high}, b0, b1);
  }
};

/// What is computed from f16 may be far out of its range. tf32 has its digits and the range of
/// float32.
template <>
struct TensorCore<f16> {
  using Stored = std::uint32_t;
  using Computed = Tf32Pair;
  using Precise = Tf32Pair;

  static __device__ __forceinline__ Computed computed(float first, float second) {
    return {to_tf32(first), to_tf32(second)};
  }
  static __device__ __forceinline__ Precise precise(float first, float second) {
    return computed(first, second);
  }

  static __device__ __forceinline__ void multiply(float (&d)[4], const Stored (&a)[4], Stored b0,
                                                  Stored b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ void multiply_computed_a(float (&d)[4], const Computed (&a)[4],
                                                             Stored b0, Stored b1) {
    multiply_tf32(d, a, widened(b0), widened(b1));
  }
  static __device__ __forceinline__ void multiply_computed_b(float (&d)[4], const Stored (&a)[4],
                                                             Computed b0, Computed b1) {
    multiply_tf32(d, {widened(a[0]), widened(a[1]), widened(a[2]), widened(a[3])}, b0, b1);
  }
  static __device__ __forceinline__ void multiply_precise_a(float (&d)[4], const Precise (&a)[4],
                                                            Stored b0, Stored b1) {
    multiply_computed_a(d, a, b0, b1);
  }

 private:
  static __device__ __forceinline__ Computed widened(std::uint32_t pair) {
    const float2 floats = Pair<f16>::to_floats(pair);
    return {__float_as_uint(floats.x), __float_as_uint(floats.y)};
  }
};

/// Floats as three bf16 each, which hold their 24 digits: v = high + middle + low. Of the nine
/// products of two floats those count that are at least 2^-17 of the largest; what is left out is
/// below 2^-24. Each sum of 16 begins at zero, smallest products first, and is added to `d` by the
/// ordinary, correctly rounded unit: tensor cores round sums towards zero, which would add up.
/// Magnitudes above 3.38e38 become infinite.
struct SplitFloats {
  struct Computed {
    std::uint32_t high, middle, low;
  };

  static __device__ __forceinline__ Computed computed(float first, float second) {
    Computed out;
    out.high = take(first, second);
    out.middle = take(first, second);
    out.low = take(first, second);
    return out;
  }

  static __device__ __forceinline__ void multiply(float (&d)[4], const Computed (&a)[4],
                                                  const Computed& b0, const Computed& b1) {
    const std::uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    const std::uint32_t middle[4] = {a[0].middle, a[1].middle, a[2].middle, a[3].middle};
    const std::uint32_t low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
    float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    TensorCore<bf16>::multiply(sum, low, b0.high, b1.high);
    TensorCore<bf16>::multiply(sum, high, b0.low, b1.low);
    TensorCore<bf16>::multiply(sum, middle, b0.middle, b1.middle);
    TensorCore<bf16>::multiply(sum, middle, b0.high, b1.high);
    TensorCore<bf16>::multiply(sum, high, b0.middle, b1.middle);
    TensorCore<bf16>::multiply(sum, high, b0.high, b1.high);
#pragma unroll
    for (int k = 0; k < 4; ++k) d[k] += sum[k];
  }

 private:
  /// The numbers rounded; what that leaves takes their place.
  static __device__ __forceinline__ std::uint32_t take(float& first, float& second) {
    const std::uint32_t rounded = Pair<bf16>::from_floats(first, second);
    const float2 taken = Pair<bf16>::to_floats(rounded);
    first -= taken.x;
    second -= taken.y;
    return rounded;
  }
};

/// Floats rounded to tf32.
struct RoundedFloats {
  using Computed = Tf32Pair;

  static __device__ __forceinline__ Computed computed(float first, float second) {
    return {to_tf32(first), to_tf32(second)};
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const Computed (&a)[4],
                                                  Computed b0, Computed b1) {
    multiply_tf32(d, a, b0, b1);
  }
};

/// An arithmetic whose operands are all alike.
template <typename Floats>
struct TensorCoreOfFloats : Floats {
  using Computed = typename Floats::Computed;
  using Stored = Computed;
  using Precise = Computed;

  static __device__ __forceinline__ Precise precise(float first, float second) {
    return Floats::computed(first, second);
  }
  static __device__ __forceinline__ void multiply_computed_a(float (&d)[4], const Computed (&a)[4],
                                                             Computed b0, Computed b1) {
    Floats::multiply(d, a, b0, b1);
  }
  static __device__ __forceinline__ void multiply_computed_b(float (&d)[4], const Computed (&a)[4],
                                                             Computed b0, Computed b1) {
    Floats::multiply(d, a, b0, b1);
  }
  static __device__ __forceinline__ void multiply_precise_a(float (&d)[4], const Computed (&a)[4],
                                                            Computed b0, Computed b1) {
    Floats::multiply(d, a, b0, b1);
  }
};

template <>
struct TensorCore<float> : TensorCoreOfFloats<SplitFloats> {};
template <>
struct TensorCore<Tf32> : TensorCoreOfFloats<RoundedFloats> {};

}  // namespace adder::cuda
