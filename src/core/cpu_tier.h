#pragma once

#include <string_view>
#include <vector>

namespace adder {

/// Instruction-set tiers that kernels are compiled for, slowest first. `baseline` is what the
/// compiler targets by default (SSE2 on x86-64, NEON on aarch64); `avx2` adds AVX2, FMA and F16C;
/// `avx512` adds AVX-512 F, BW, DQ and VL.
enum class CpuTier { baseline, avx2, avx512 };

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
// `get()` that returns the active tier's. Each tier's copy comes from compiling kernels.cc again
// with that tier's flags (see adder_add_op in cmake/AdderOp.cmake).
#if defined(ADDER_TIERS_X86)
#define ADDER_TIERED_KERNELS(Kernels, get) \
  namespace tier_baseline {                \
  const Kernels& get();                    \
  }                                        \
  namespace tier_avx2 {                    \
  const Kernels& get();                    \
  }                                        \
  namespace tier_avx512 {                  \
  const Kernels& get();                    \
  }                                        \
  inline const Kernels& get() {            \
    switch (active_cpu_tier()) {           \
      case CpuTier::avx512:                \
        return tier_avx512::get();         \
      case CpuTier::avx2:                  \
        return tier_avx2::get();           \
      default:                             \
        return tier_baseline::get();       \
    }                                      \
  }
#else
#define ADDER_TIERED_KERNELS(Kernels, get) \
  namespace tier_baseline {                \
  const Kernels& get();                    \
  }                                        \
  inline const Kernels& get() { return tier_baseline::get(); }
#endif

}  // namespace adder
