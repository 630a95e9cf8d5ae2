// ssd_forward on what the bundled model feeds it with.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/cpu_tier.h"
#include "ops/ssd_forward/test_states.h"
#include "tests/model/ssd_activations.h"

namespace adder {
namespace {

using test::PooledHeads;
using test::SsdCase;
using test::SsdRecord;

TEST(SsdActivations, AreAModelsAndNotRandom) {
  const std::vector<SsdRecord> records = test::record_ssd_of_books();
  ASSERT_EQ(records.size(), 3U);
  for (const SsdRecord& record : records) {
    EXPECT_EQ(record.input.x.view.dim(0), test::kTokensRecorded);
    ASSERT_EQ(record.z.view.numel(), record.input.x.view.numel());
    double squares = 0;  // what the tokens before have left
    for (float v : record.state.span<float>()) squares += static_cast<double>(v) * v;
    EXPECT_GT(squares, 0);
  }
  EXPECT_NE(test::to_floats(records[0].input.dt.view), test::to_floats(records[2].input.dt.view));
}

TEST(SsdActivations, SsdForwardIsAsGoodAsTheRecurrenceInEveryTierAndDtype) {
  const std::vector<SsdRecord> records = test::record_ssd_of_books();
  ThreadPool pool(2);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<SsdCase> cases;
    std::vector<test::Yardstick> yardsticks;
    for (const SsdRecord& record : records) {
      cases.push_back(test::case_of(record, dtype, DType::f32, true));
      yardsticks.emplace_back(cases.back(), ref::ssd_forward<float>(cases.back().args));
    }
    for (CpuTier tier : supported_cpu_tiers()) {
      const ScopedCpuTier scoped(tier);
      PooledHeads y;
      PooledHeads final_states;
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::string label = fmt::format("{} {} record {}", name_of(dtype), name_of(tier), i);
        const test::SsdShape& s = cases[i].shape;
        const test::SsdOutput got = cases[i].run(pool);
        yardsticks[i].add(cases[i], got, label, y, final_states);
        // In float32 whatever the dtype of x.
        test::expect_states_close(got.final_states, yardsticks[i].truth.final_states,
                                  s.headdim * s.dstate, DType::f32, false, label);
      }
      EXPECT_TRUE(y.as_good_as_plain());
      EXPECT_TRUE(final_states.as_good_as_plain());
    }
  }
}

}  // namespace
}  // namespace adder
