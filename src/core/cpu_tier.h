#pragma once

#include <string_view>
#include <vector>

namespace adder {

/// Instruction-set tiers that kernels are compiled for, slowest first. `baseline` is what the
/// compiler targets by default (SSE2 on x86-64, NEON on aarch64); `avx2` adds AVX2, FMA and F16C;
/// `avx512` adds AVX-512 F, BW, DQ and VL. `avxvnni` and `avx512vnni` add to the one before them
/// the dot product of four bytes; operations without a use for it have no kernels of their own
/// there.
enum class CpuTier { baseline, avx2, avxvnni, avx512, avx512vnni };

std::string_view name_of(CpuTier tier);

/// The tiers this machine can run, slowest first. Never empty.
const std::vector<CpuTier>& supported_cpu_tiers();

/// The tier that kernels use now: the best one, unless the environment variable ADDER_CPU_TIER
/// names another (an unknown or unsupported name is an error) or a ScopedCpuTier is alive.
CpuTier active_cpu_tier();

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

// Declares the kernel table `Kernels` of one operation in every compiled tier, and a function
// `get()` that returns that of the active tier, or of the best one below it that there is. Each
// tier's copy comes from compiling kernels.cc again with that tier's flags (see adder_add_op in
// cmake/AdderOp.cmake). ADDER_TIERED_KERNELS_VNNI is for operations that are compiled for the tiers
// with VNNI too.
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
#define ADDER_TIERED_KERNELS_VNNI(Kernels, get)   \
  ADDER_KERNELS_OF_TIER(Kernels, get, baseline)   \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx2)       \
  ADDER_KERNELS_OF_TIER(Kernels, get, avxvnni)    \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx512)     \
  ADDER_KERNELS_OF_TIER(Kernels, get, avx512vnni) \
  inline const Kernels& get() {                   \
    switch (active_cpu_tier()) {                  \
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
#define ADDER_TIERED_KERNELS_VNNI(Kernels, get) ADDER_TIERED_KERNELS(Kernels, get)
#endif
#define ADDER_KERNELS_OF_TIER(Kernels, get, tier) \
  namespace tier_##tier {                         \
    const Kernels& get();                         \
  }

}  // namespace adder
