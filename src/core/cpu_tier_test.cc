#include "core/cpu_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "adder/error.h"

namespace adder {
namespace {

bool is_supported(CpuTier tier) {
  const auto& tiers = supported_cpu_tiers();
  return std::find(tiers.begin(), tiers.end(), tier) != tiers.end();
}

TEST(CpuTier, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (CpuTier tier : compiled_cpu_tiers()) names.insert(name_of(tier));
  EXPECT_EQ(names.size(), compiled_cpu_tiers().size());
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(CpuTier, BaselineIsAlwaysThereAndTheDefaultIsSupported) {
  EXPECT_EQ(compiled_cpu_tiers().front(), CpuTier::baseline);
  EXPECT_TRUE(is_supported(CpuTier::baseline));
  EXPECT_TRUE(is_supported(default_cpu_tier()));
  EXPECT_TRUE(std::is_sorted(supported_cpu_tiers().begin(), supported_cpu_tiers().end()));
}

// One test a tier, so that a run says which of them this machine could not test.
class EveryTier : public ::testing::TestWithParam<CpuTier> {};

TEST_P(EveryTier, IsActiveWhileForcedAndRefusedElsewhere) {
  if (!is_supported(GetParam())) {
    EXPECT_THROW(ScopedCpuTier{GetParam()}, Error);
    GTEST_SKIP() << "this machine cannot run the CPU tier " << name_of(GetParam())
                 << ": no test of any operation covers it here";
  }
  const CpuTier before = active_cpu_tier();
  {
    const ScopedCpuTier scoped(GetParam());
    EXPECT_EQ(active_cpu_tier(), GetParam());
  }
  EXPECT_EQ(active_cpu_tier(), before);
}

INSTANTIATE_TEST_SUITE_P(CpuTier, EveryTier, ::testing::ValuesIn(compiled_cpu_tiers()),
                         [](const auto& tier) { return std::string(name_of(tier.param)); });

}  // namespace
}  // namespace adder
