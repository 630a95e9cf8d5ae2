#include <gtest/gtest.h>

#include "core/cpu_tier.h"
#include "ops/ssd_forward/test_case.h"

namespace adder {
namespace {

using test::same_bits;
using test::SsdCase;
using test::SsdOutput;
using test::SsdShape;

constexpr std::int64_t kQ = 32;

TEST(SsdForward, AsGoodAsTheRecurrenceInEveryTierAndLength) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t seqlen : {std::int64_t{0}, std::int64_t{1}, kQ - 1, kQ, kQ + 1, 2 * kQ + 3}) {
      for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(tier) << " seqlen " << seqlen << " " << name_of(dtype));
        const SsdCase c({.batch = 2, .seqlen = seqlen, .nheads = 4, .ngroups = 2, .dtype = dtype});
        c.expect_right(c.run(pool));
      }
    }
  }
}

}  // namespace
}  // namespace adder
