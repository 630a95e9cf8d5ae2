#pragma once

// Numbers that blocks make for each other without a meeting of all. Each carries a tag, which its
// readers wait for: so there is one way through the L2 cache between writer and reader, not that of
// the number, a fence, a flag and the number again.
//
// Instructions take turns in parts of memory, see assemble.cc; a tag is the number of the turn.

#include "ops/step_program/cuda_kernel.h"

namespace adder::cuda::program {

/// What an instruction gives. For x of bf16 a number is rounded to 16 bits of precision, what a
/// product keeps of it, and the tag is in place of the others: one word. For float32 it is a word
/// of its own.
template <typename X>
class Exchange {
  using Number = ExchangedNumber<X>;
  static constexpr bool kIsPair = sizeof(Number) == 8;
  static constexpr std::uint32_t kTag = kIsPair ? 0xffffffffu : 0xffu;

 public:
  /// `launches`: before this one.
  __device__ Exchange(const Params<X>& p, const Link& link, std::uint32_t launches)
      : numbers_(p.exchange + link.at), tag_((launches * link.turns + link.turn + 1) & kTag) {}

  __device__ void put(int at, float number) const {
    const std::uint32_t bits = __float_as_uint(number);
    if constexpr (kIsPair) {
      const std::uint64_t pair = std::uint64_t{tag_} << 32 | bits;
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(numbers_ + at), "l"(pair)
                   : "memory");
    } else {
      constexpr std::uint32_t kExponent = 0x7f800000u;
      const std::uint32_t half = (bits & kExponent) == kExponent ? 0 : (kTag + 1) / 2;
      const std::uint32_t word = ((bits + half) & ~kTag) | tag_;
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(numbers_ + at), "r"(word)
                   : "memory");
    }
  }

  /// Whether it is there.
  __device__ bool take(int at, float& number) const {
    Number now{};
    if constexpr (kIsPair) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                   : "=l"(now)
                   : "l"(numbers_ + at)
                   : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(now)
                   : "l"(numbers_ + at)
                   : "memory");
    }
    return is_there(now, number);
  }
  /// The same of four, the first of which is one of every fourth.
  __device__ bool take(int at, float (&numbers)[4]) const {
    Number now[4];
    const Number* from = numbers_ + at;
    if constexpr (kIsPair) {
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(now[0]), "=l"(now[1])
                   : "l"(from)
                   : "memory");
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(now[2]), "=l"(now[3])
                   : "l"(from + 2)
                   : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(now[0]), "=r"(now[1]), "=r"(now[2]), "=r"(now[3])
                   : "l"(from)
                   : "memory");
    }
    bool all = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) all = is_there(now[i], numbers[i]) && all;
    return all;
  }

 private:
  __device__ bool is_there(Number now, float& number) const {
    if constexpr (kIsPair) {
      number = __uint_as_float(static_cast<std::uint32_t>(now));
      return static_cast<std::uint32_t>(now >> 32) == tag_;
    } else {
      number = __uint_as_float(now & ~kTag);
      return (now & kTag) == tag_;
    }
  }

  Number* numbers_;
  std::uint32_t tag_;
};

}  // namespace adder::cuda::program
