#pragma once

// The vocabulary of Hopper kernels (sm_90a): barriers in shared memory, the bulk tensor copy
// engine, warpgroup matrix products. One function per instruction or fixed idiom; shapes are
// written beside each. Tiles in shared memory are rows of 128 bytes (64 elements of 16 bits),
// aligned to 1024 bytes, in the copy engine's 128-byte swizzle: 16-byte block b of row r lies at
// block b ^ (r % 8).

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/math.cuh"
#include "cuda/overlap.cuh"
#include "cuda/tensor_core.cuh"

namespace adder::cuda {

// ---- addresses ----------------------------------------------------------------------------------

/// Byte offset in a swizzled tile of 16-byte block `block` (0 to 7) of `row`.
__device__ inline std::uint32_t swizzled(int row, int block) {
  return static_cast<std::uint32_t>(row * 128 + ((block ^ (row & 7)) << 4));
}

// ---- barriers in shared memory ------------------------------------------------------------------

using Barrier = std::uint64_t;

__device__ inline void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(to_shared(barrier)), "r"(arrivals)
               : "memory");
}

/// Makes initialized barriers visible to the copy engine.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Before it is initialized again; nobody waits for it.
__device__ inline void invalidate_barrier(Barrier* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(to_shared(barrier)) : "memory");
}

__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(to_shared(barrier)) : "memory");
}

/// So many times.
__device__ inline void arrive(Barrier* barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(to_shared(barrier)), "r"(times)
               : "memory");
}

/// Arrives and announces bytes that the copy engine will bring in this phase.
__device__ inline void arrive_expecting(Barrier* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(to_shared(barrier)),
               "r"(bytes)
               : "memory");
}

/// Waits until the phase of this parity is over: for the n-th use (from 0) of a barrier, n % 2.
__device__ inline void wait(Barrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(to_shared(barrier)),
      "r"(parity)
      : "memory");
}

/// Barrier `id` (1 to 15) among `threads` threads of the block, a multiple of 32.
__device__ inline void sync_threads_of(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as there for those who wait so for the same barrier, and goes on.
__device__ inline void arrive_threads_of(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- the copy engine ----------------------------------------------------------------------------

/// Coordinates of a box in a tensor of four dimensions, fastest first.
struct Box {
  int c0, c1, c2, c3;
};

/// Brings a box to `tile` and counts its bytes at `barrier`.
__device__ inline void load_box(void* tile, const CUtensorMap& map, Barrier* barrier, Box box) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to_shared(tile)),
      "l"(&map), "r"(to_shared(barrier)), "r"(box.c0), "r"(box.c1), "r"(box.c2), "r"(box.c3)
      : "memory");
}

/// Brings adjacent bytes, a multiple of 16 from an address that is one, to `to`, likewise.
__device__ inline void load_bytes(void* to, const void* from, std::uint32_t bytes,
                                  Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to_shared(to)),
      "l"(from), "r"(bytes), "r"(to_shared(barrier))
      : "memory");
}

/// Writes a box from shared memory; elements outside of the tensor are left out.
__device__ inline void store_box(const CUtensorMap& map, const void* tile, Box box) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(to_shared(tile)), "r"(box.c0), "r"(box.c1), "r"(box.c2), "r"(box.c3)
      : "memory");
}

/// Adds a box from shared memory to what is there, element by element in the tensor's type.
__device__ inline void add_box(const CUtensorMap& map, const void* tile, Box box) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(to_shared(tile)), "r"(box.c0), "r"(box.c1), "r"(box.c2), "r"(box.c3)
      : "memory");
}

__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Until all but the last kPending groups of stores have read their shared memory.
template <int kPending>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Until all but the last kPending groups of stores are done.
template <int kPending>
__device__ inline void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Orders ordinary accesses to shared memory before those of the copy engine and matrix units.
__device__ inline void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- between blocks -----------------------------------------------------------------------------

/// What the thread, and others of its block that it has synchronized with, wrote before is visible
/// to whoever loads this value so.
__device__ inline void store_release(unsigned* to, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline unsigned load_acquire(const unsigned* from) {
  unsigned out = 0;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(out) : "l"(from) : "memory");
  return out;
}

// ---- registers ----------------------------------------------------------------------------------

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// The same value, of which the compiler knows nothing: what is derived from it is computed where
/// it is used, not kept in registers throughout a loop.
__device__ inline int renewed(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- fragments ----------------------------------------------------------------------------------

/// The inverse of ldmatrix_x4.
__device__ inline void store_matrices(std::uint32_t address, std::uint32_t r0, std::uint32_t r1,
                                      std::uint32_t r2, std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

__device__ inline std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t out = 0;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(address) : "memory");
  return out;
}

/// Two floats as a pair of 16-bit elements, the first in the low half.
template <typename T>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t out = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  std::uint32_t out = 0;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

template <typename T>
__device__ inline float2 unpack(std::uint32_t pair);
template <>
__device__ inline float2 unpack<__nv_bfloat16>(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
}
template <>
__device__ inline float2 unpack<__half>(std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// ---- warpgroup matrix products ------------------------------------------------------------------

/// Orders the warpgroup's register accesses before the products that follow.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until all but the last kPending committed groups are done.
template <int kPending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses to an accumulator across this point.
template <int kCount>
__device__ inline void pin(float (&accumulator)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulator[i])::"memory");
}

/// Keeps the registers of operands, which products still read, from being used for something else.
__device__ inline void pin(std::uint32_t (&operand)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(operand[i])::"memory");
}
template <int kCount>
__device__ inline void pin(std::uint32_t (&operand)[kCount][4]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) pin(operand[k]);
}

/// Describes a swizzled tile to the matrix units. Operand B of a product, n × k:
///   k contiguous (`rows` are n):  [n][64 k], step k by 16 with + 32 bytes
///   n contiguous (`rows` are k):  [k][64 n], step k by 16 with + 2048 bytes
/// A description plus `tile_offset(bytes)` describes what lies that much further.
__device__ inline std::uint64_t describe_tile(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | kEightRows | (std::uint64_t{1} << 16) | ((address & 0x3ffff) >> 4);
}
__device__ constexpr std::uint64_t tile_offset(int bytes) {
  return static_cast<std::uint64_t>(bytes >> 4);
}

/// How the tile of operand B lies in shared memory.
enum class Operand : int { k_contiguous = 0, n_contiguous = 1 };

// The accumulators' operands %0 to %31, for the instructions below.
#define ADDER_D                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define ADDER_D_OPERANDS                                                                          \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define ADDER_MULTIPLY(TYPE, A, REST, ...)                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " REST                                  \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " ADDER_D A \
:ADDER_D_OPERANDS                                                                        \
               : __VA_ARGS__)

/// d (64 × 64) = or += a (64 × 16, registers) · tile (16 × 64, shared memory). Thread t of the
/// warpgroup holds of d the elements (16 (t / 32) + (t % 32) / 4 + {0, 8}, 8 j + 2 (t % 4) + {0,
/// 1}): d[4 j + {0, 1}] of the first row, d[4 j + {2, 3}] of the second.
template <typename T, Operand kOperand>
__device__ inline void multiply_64x64x16(float (&d)[32], const std::uint32_t (&a)[4],
                                         std::uint64_t tile, bool accumulate) {
#define ADDER_FROM_REGISTERS(TYPE)                                                              \
  ADDER_MULTIPLY(TYPE, "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n", "%37", "r"(a[0]),       \
                 "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(static_cast<int>(accumulate)), \
                 "n"(static_cast<int>(kOperand)))
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    ADDER_FROM_REGISTERS("bf16");
  } else {
    ADDER_FROM_REGISTERS("f16");
  }
#undef ADDER_FROM_REGISTERS
}

/// The same with a in shared memory too, [64][16 k] of a tile with k contiguous.
template <typename T, Operand kOperand>
__device__ inline void multiply_64x64x16(float (&d)[32], std::uint64_t a, std::uint64_t tile,
                                         bool accumulate) {
#define ADDER_FROM_SHARED(TYPE)                                                     \
  ADDER_MULTIPLY(TYPE, "%32, %33, p, 1, 1, 0, %35;\n}\n", "%34", "l"(a), "l"(tile), \
                 "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kOperand)))
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    ADDER_FROM_SHARED("bf16");
  } else {
    ADDER_FROM_SHARED("f16");
  }
#undef ADDER_FROM_SHARED
}

#undef ADDER_MULTIPLY
#undef ADDER_D_OPERANDS
#undef ADDER_D

}  // namespace adder::cuda
