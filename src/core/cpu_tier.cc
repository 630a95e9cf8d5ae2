#include "core/cpu_tier.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "core/check.h"

#if defined(ADDER_TIERS_X86)
#include <cpuid.h>
#endif

namespace adder {
namespace {

constexpr int kNotForced = -1;
std::atomic<int> forced_tier{kNotForced};

#if defined(ADDER_TIERS_X86)
// Clang 14's __builtin_cpu_supports does not know this feature.
bool supports_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// Nor this one.
bool supports_avxvnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}
#endif

std::vector<CpuTier> detect() {
  std::vector<CpuTier> tiers{CpuTier::baseline};
#if defined(ADDER_TIERS_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && supports_f16c()) {
    tiers.push_back(CpuTier::avx2);
    if (supports_avxvnni()) tiers.push_back(CpuTier::avxvnni);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      tiers.push_back(CpuTier::avx512);
      if (__builtin_cpu_supports("avx512vnni")) tiers.push_back(CpuTier::avx512vnni);
    }
  }
#endif
  return tiers;
}

CpuTier choose() {
  const std::vector<CpuTier>& tiers = supported_cpu_tiers();
  const char* wanted = std::getenv("ADDER_CPU_TIER");
  if (wanted == nullptr || *wanted == '\0') return tiers.back();
  std::string names;
  for (CpuTier tier : tiers) {
    if (name_of(tier) == wanted) return tier;
    names += (names.empty() ? "" : ", ") + std::string(name_of(tier));
  }
  fail("ADDER_CPU_TIER is \"{}\", expected one that this machine can run: {}", wanted, names);
}

}  // namespace

std::string_view name_of(CpuTier tier) {
  switch (tier) {
    case CpuTier::baseline:
      return "baseline";
    case CpuTier::avx2:
      return "avx2";
    case CpuTier::avxvnni:
      return "avxvnni";
    case CpuTier::avx512:
      return "avx512";
    case CpuTier::avx512vnni:
      return "avx512vnni";
  }
  return "unknown";
}

const std::vector<CpuTier>& supported_cpu_tiers() {
  static const std::vector<CpuTier> tiers = detect();
  return tiers;
}

CpuTier active_cpu_tier() {
  const int forced = forced_tier.load(std::memory_order_relaxed);
  if (forced != kNotForced) return static_cast<CpuTier>(forced);
  static const CpuTier chosen = choose();
  return chosen;
}

ScopedCpuTier::ScopedCpuTier(CpuTier tier) : previous_(forced_tier.load()) {
  const std::vector<CpuTier>& tiers = supported_cpu_tiers();
  check(std::find(tiers.begin(), tiers.end(), tier) != tiers.end(),
        "this machine cannot run the CPU tier {}", name_of(tier));
  forced_tier.store(static_cast<int>(tier));
}

ScopedCpuTier::~ScopedCpuTier() { forced_tier.store(previous_); }

}  // namespace adder
