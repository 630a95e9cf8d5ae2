#pragma once

#include <string_view>
#include <vector>

namespace adder {

/// Instruction-set tiers that kernels are compiled for: those of x86-64, slowest first, then those
/// of aarch64.
///
/// - `baseline`: what the compiler targets by default (SSE2 on x86-64, NEON on aarch64);
/// - `avx2`: AVX2, FMA and F16C;
/// - `avxvnni`: avx2 and AVX-VNNI, the dot product of four bytes;
/// - `avx512`: AVX-512 F, BW, DQ and VL;
/// - `avx512vnni`: avx512 and its dot product of four bytes;
/// - `avx512bf16`: avx512vnni and its dot product of two bf16 numbers;
/// - `amx`: avx512bf16 and AMX's matrix products of bf16 numbers and of bytes;
/// - `dotprod`: NEON and its dot product of four bytes (Armv8.2-A);
/// - `i8mm`: dotprod and NEON's matrix products of bf16 numbers and of bytes (Armv8.6-A).
///
/// An operation without a use for what a tier adds has no kernels of its own there.
enum class CpuTier {
  baseline,
  avx2,
  avxvnni,
  avx512,
  avx512vnni,
  avx512bf16,
  amx,
  dotprod,
  i8mm,
};

std::string_view name_of(CpuTier tier);

/// The tiers that this build has kernels for, slowest first.
const std::vector<CpuTier>& compiled_cpu_tiers();

/// The tiers of them that this machine can run. Never empty.
const std::vector<CpuTier>& supported_cpu_tiers();

/// The tier that kernels use unless told otherwise: the last that this machine can run, but
/// avx512bf16 only on AMD's processors. On Intel's its dot product does half the operations of an
/// FMA. The choice follows from the processor alone, never from a measurement, so that a machine
/// gives the same results every time.
CpuTier default_cpu_tier();

/// The tier that kernels use now: the default one, unless the environment variable ADDER_CPU_TIER
/// names another (an unknown or unsupported name is an error) or a ScopedCpuTier is alive.
CpuTier active_cpu_tier();

/// Whether a tier multiplies bf16 numbers, so that it rounds to bf16 what bf16 weights are
/// multiplied by, where it may.
constexpr bool multiplies_bf16(CpuTier tier) {
  return tier == CpuTier::avx512bf16 || tier == CpuTier::amx || tier == CpuTier::i8mm;
}

/// Forces a tier for the lifetime of the object: for tests that run every tier. Not for use while
/// another thread runs kernels.
class ScopedCpuTier {
 public:
  explicit ScopedCpuTier(CpuTier tier);
  ~ScopedCpuTier();
  ScopedCpuTier(const ScopedCpuTier&) = delete;
  ScopedCpuTier& operator=(const ScopedCpuTier&) = delete;

 private:
  int previous_;
};

// Declares the kernel table `Kernels` of one operation in every tier that kernels.cc is compiled
// for, and a function `get()` that returns that of the active tier, or of the best one below it
// that there is. Each tier's copy comes from compiling kernels.cc again with that tier's flags (see
// adder_add_op in cmake/AdderOp.cmake). ADDER_TIERED_KERNELS_DOT is for operations that are
// compiled for the tiers that add a dot product of bytes, too.
#if defined(ADDER_TIERS_X86)
#define ADDER_TIERED_KERNELS(Kernels, get)                  \
  ADDER_KERNELS_OF_TIER(Kernels, get, baseline)             \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx2)                 \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx512)               \
  inline const Kernels& get() {                             \
    const CpuTier tier = active_cpu_tier();                 \
    if (tier >= CpuTier::avx512) return tier_avx512::get(); \
    if (tier >= CpuTier::avx2) return tier_avx2::get();     \
    return tier_baseline::get();                            \
  }
#define ADDER_TIERED_KERNELS_DOT(Kernels, get)    \
  ADDER_KERNELS_OF_TIER(Kernels, get, baseline)   \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx2)       \
  ADDER_KERNELS_OF_TIER(Kernels, get, avxvnni)    \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx512)     \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx512vnni) \
  inline const Kernels& get() {                   \
    switch (active_cpu_tier()) {                  \
      case CpuTier::amx:                          \
      case CpuTier::avx512bf16:                   \
      case CpuTier::avx512vnni:                   \
        return tier_avx512vnni::get();            \
      case CpuTier::avx512:                       \
        return tier_avx512::get();                \
      case CpuTier::avxvnni:                      \
        return tier_avxvnni::get();               \
      case CpuTier::avx2:                         \
        return tier_avx2::get();                  \
      default:                                    \
        return tier_baseline::get();              \
    }                                             \
  }
#else
#define ADDER_TIERED_KERNELS(Kernels, get)      \
  ADDER_KERNELS_OF_TIER(Kernels, get, baseline) \
  inline const Kernels& get() { return tier_baseline::get(); }
#if defined(ADDER_TIERS_ARM)
#define ADDER_TIERED_KERNELS_DOT(Kernels, get)  \
  ADDER_KERNELS_OF_TIER(Kernels, get, baseline) \
  ADDER_KERNELS_OF_TIER(Kernels, get, dotprod)  \
  ADDER_KERNELS_OF_TIER(Kernels, get, i8mm)     \
  inline const Kernels& get() {                 \
    switch (active_cpu_tier()) {                \
      case CpuTier::i8mm:                       \
        return tier_i8mm::get();                \
      case CpuTier::dotprod:                    \
        return tier_dotprod::get();             \
      default:                                  \
        return tier_baseline::get();            \
    }                                           \
  }
#else
#define ADDER_TIERED_KERNELS_DOT(Kernels, get) ADDER_TIERED_KERNELS(Kernels, get)
#endif
#endif
#define ADDER_KERNELS_OF_TIER(Kernels, get, tier) \
  namespace tier_##tier {                         \
    const Kernels& get();                         \
  }

}  // namespace adder
