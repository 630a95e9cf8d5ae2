#pragma once

// Adjacent elements of a tensor, moved with one access and converted to float and back.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "adder/dtype.h"

namespace adder::cuda {

/// The bytes of the widest access of one thread.
inline constexpr int kAccessBytes = 16;
/// Elements of T in it.
template <typename T>
inline constexpr int kVector = kAccessBytes / static_cast<int>(sizeof(T));

template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

/// N adjacent elements as they lie in memory, at an address that is a multiple of their size.
template <typename T, int N>
struct Pack {
  using Memory = typename Word<N* static_cast<int>(sizeof(T))>::type;
  Memory memory;
};

template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  return {*reinterpret_cast<const typename Pack<T, N>::Memory*>(from)};
}

/// Marked as the first to be evicted: for what is read once, so that the rest stays in the caches.
template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load_once(const T* from) {
  return {__ldcs(reinterpret_cast<const typename Pack<T, N>::Memory*>(from))};
}

template <typename T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<typename Pack<T, N>::Memory*>(to) = pack.memory;
}

/// The counterpart of load_once: for what is not read again soon.
template <typename T, int N>
__device__ __forceinline__ void store_once(T* to, const Pack<T, N>& pack) {
  __stcs(reinterpret_cast<typename Pack<T, N>::Memory*>(to), pack.memory);
}

/// Two 16-bit elements in a word, the first in its lower half.
template <typename T>
struct Pair;
template <>
struct Pair<bf16> {
  static __device__ __forceinline__ float2 to_floats(std::uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
  static __device__ __forceinline__ std::uint32_t from_floats(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};
template <>
struct Pair<f16> {
  static __device__ __forceinline__ float2 to_floats(std::uint32_t word) {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
  static __device__ __forceinline__ std::uint32_t from_floats(float first, float second) {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};

template <typename T, int N>
__device__ __forceinline__ void to_floats(const Pack<T, N>& pack, float (&out)[N]) {
  if constexpr (N * sizeof(T) == 2) {
    out[0] = Pair<T>::to_floats(pack.memory).x;
  } else {
    const auto* words = reinterpret_cast<const std::uint32_t*>(&pack.memory);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] = __uint_as_float(words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float2 pair = Pair<T>::to_floats(words[i]);
        out[2 * i] = pair.x;
        out[2 * i + 1] = pair.y;
      }
    }
  }
}

/// Rounds to nearest even.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> from_floats(const float (&in)[N]) {
  Pack<T, N> pack;
  if constexpr (N * sizeof(T) == 2) {
    pack.memory = static_cast<unsigned short>(Pair<T>::from_floats(in[0], 0.0F));
  } else {
    auto* words = reinterpret_cast<std::uint32_t*>(&pack.memory);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = __float_as_uint(in[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) words[i] = Pair<T>::from_floats(in[2 * i], in[2 * i + 1]);
    }
  }
  return pack;
}

/// N floats from an address that is aligned to 16 bytes if `aligned`, else to 4.
template <int N>
__device__ __forceinline__ void load_floats(const float* from, bool aligned, float (&out)[N]) {
  if constexpr (N % 4 == 0) {
    if (aligned) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        out[i] = four.x;
        out[i + 1] = four.y;
        out[i + 2] = four.z;
        out[i + 3] = four.w;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = from[i];
}

/// The counterpart for an aligned address, or N below 4.
template <int N>
__device__ __forceinline__ void store_floats(float* to, const float (&in)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = in[i];
  }
}

/// One element.
template <typename T>
__device__ __forceinline__ float read(const T* from) {
  float v[1];
  to_floats(load<1>(from), v);
  return v[0];
}
template <typename T>
__device__ __forceinline__ void write(T* to, float v) {
  const float one[1] = {v};
  store(to, from_floats<T, 1>(one));
}

}  // namespace adder::cuda
