#include "core/cpu_tier.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "core/check.h"

#if defined(ADDER_TIERS_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(ADDER_TIERS_ARM)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace adder {
namespace {

constexpr int kNotForced = -1;
std::atomic<int> forced_tier{kNotForced};

#if defined(ADDER_TIERS_X86)

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  // All zero for a leaf that the processor does not have.
  explicit Cpuid(unsigned leaf, unsigned subleaf = 0) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
  }
};

// Features that Clang 14's __builtin_cpu_supports does not know.
bool supports_f16c() { return (Cpuid(1).ecx & bit_F16C) != 0; }
bool supports_avxvnni() { return (Cpuid(7, 1).eax & (1u << 4)) != 0; }
bool supports_avx512bf16() { return (Cpuid(7, 1).eax & (1u << 5)) != 0; }

// AMX's registers are 8 KB that a process must ask Linux for, once for all its threads.
bool supports_amx() {
#if defined(__linux__)
  constexpr unsigned kTile = 1u << 24;
  constexpr unsigned kBf16 = 1u << 22;
  constexpr unsigned kInt8 = 1u << 25;
  constexpr unsigned kAll = kTile | kBf16 | kInt8;
  if ((Cpuid(7).edx & kAll) != kAll) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool is_amd() {
  const Cpuid vendor(0);
  return vendor.ebx == signature_AMD_ebx && vendor.ecx == signature_AMD_ecx &&
         vendor.edx == signature_AMD_edx;
}

bool supports(CpuTier tier) {
  __builtin_cpu_init();
  switch (tier) {
    case CpuTier::baseline:
      return true;
    case CpuTier::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && supports_f16c();
    case CpuTier::avxvnni:
      return supports(CpuTier::avx2) && supports_avxvnni();
    case CpuTier::avx512:
      return supports(CpuTier::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case CpuTier::avx512vnni:
      return supports(CpuTier::avx512) && __builtin_cpu_supports("avx512vnni");
    case CpuTier::avx512bf16:
      return supports(CpuTier::avx512vnni) && supports_avx512bf16();
    case CpuTier::amx:
      return supports(CpuTier::avx512bf16) && supports_amx();
    default:
      return false;
  }
}

#elif defined(ADDER_TIERS_ARM)

bool supports(CpuTier tier) {
  constexpr unsigned long kMatrixProducts = HWCAP2_I8MM | HWCAP2_BF16;
  switch (tier) {
    case CpuTier::baseline:
      return true;
    case CpuTier::dotprod:
      return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    case CpuTier::i8mm:
      return supports(CpuTier::dotprod) &&
             (getauxval(AT_HWCAP2) & kMatrixProducts) == kMatrixProducts;
    default:
      return false;
  }
}

#else

bool supports(CpuTier tier) { return tier == CpuTier::baseline; }

#endif

CpuTier choose() {
  const std::vector<CpuTier>& tiers = supported_cpu_tiers();
  const char* wanted = std::getenv("ADDER_CPU_TIER");
  if (wanted == nullptr || *wanted == '\0') return default_cpu_tier();
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
    case CpuTier::avx512bf16:
      return "avx512bf16";
    case CpuTier::amx:
      return "amx";
    case CpuTier::dotprod:
      return "dotprod";
    case CpuTier::i8mm:
      return "i8mm";
  }
  return "unknown";
}

const std::vector<CpuTier>& compiled_cpu_tiers() {
  static const std::vector<CpuTier> tiers {
    CpuTier::baseline,
#if defined(ADDER_TIERS_X86)
        CpuTier::avx2, CpuTier::avxvnni, CpuTier::avx512, CpuTier::avx512vnni, CpuTier::avx512bf16,
        CpuTier::amx,
#elif defined(ADDER_TIERS_ARM)
        CpuTier::dotprod, CpuTier::i8mm,
#endif
  };
  return tiers;
}

const std::vector<CpuTier>& supported_cpu_tiers() {
  static const std::vector<CpuTier> tiers = [] {
    std::vector<CpuTier> out;
    for (CpuTier tier : compiled_cpu_tiers()) {
      if (supports(tier)) out.push_back(tier);
    }
    return out;
  }();
  return tiers;
}

CpuTier default_cpu_tier() {
  const CpuTier last = supported_cpu_tiers().back();
#if defined(ADDER_TIERS_X86)
  if (last == CpuTier::avx512bf16 && !is_amd()) return CpuTier::avx512vnni;
#endif
  return last;
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
