#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "adder/error.h"
#include "bench/kernels.h"
#include "bench/machine.h"
#include "bench/op_benchmark.h"

namespace adder::bench {
namespace {

TEST(TimeCalls, TimesTheBody) {
  using std::chrono::milliseconds;
  int calls = 0;
  const Timing timing = time_calls(
      [&] {
        ++calls;
        std::this_thread::sleep_for(milliseconds(2));
      },
      0.0);
  EXPECT_GE(timing.calls, 5);
  EXPECT_EQ(calls, timing.calls + 2);  // one to warm up, one to see how long it takes
  EXPECT_GE(timing.p10_s, 0.002);      // a sleep is never shorter than asked for
  EXPECT_LE(timing.p10_s, timing.median_s);
  EXPECT_LE(timing.median_s, timing.p90_s);
}

TEST(TimeCalls, TimesShortBodiesInBatches) {
  std::int64_t calls = 0;
  const Timing timing = time_calls([&] { ++calls; }, 0.002);
  EXPECT_GT(timing.calls, 100);
  EXPECT_EQ(calls, timing.calls + 2);
  EXPECT_GT(timing.median_s, 0);
  EXPECT_LT(timing.median_s, 1e-4);
}

TEST(TimeCalls, AWrongResultIsAnErrorThatNamesIt) {
  EXPECT_NO_THROW(require_accuracy("op", "n 1", 1e-6, 1e-5));
  try {
    require_accuracy("op", "n 1", 1e-4, 1e-5);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "bench op: at n 1 the error is 0.0001, expected at most 1e-05");
  }
}

TEST(Machine, KernelsDoTheWorkThatIsCounted) {
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    const MachineKernels& kernels = machine_kernels();
    // s becomes s/2 + 1/2: two rounds from s leave s/4 + 3/4, in every lane of every sum.
    const auto lanes = static_cast<float>(kernels.fma_flops_per_round / 2);
    const float once = kernels.fma(1, 0.5F);
    EXPECT_NEAR(kernels.fma(2, 0.5F), once / 2 + lanes / 2, lanes * 1e-4F) << name_of(tier);
    for (std::int64_t n : {0, 127, 128, 384, 1000}) {
      std::vector<float> data(1000);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
      const std::int64_t counted = n / 128 * 128;
      EXPECT_EQ(kernels.read(data.data(), n), static_cast<float>(counted * (counted - 1) / 2))
          << name_of(tier) << " " << n;
    }
  }
}

TEST(Machine, FiguresAreSane) {
  ThreadPool pool(2);
  const MachinePeaks peaks = measure_machine(pool, 0.01);
  EXPECT_FALSE(peaks.cpu.empty());
  EXPECT_EQ(peaks.tier, active_cpu_tier());
  EXPECT_EQ(peaks.nthreads, 2);
  // From a slow board to a machine that does not exist yet.
  for (double flops : {peaks.fma_flops, peaks.linear_flops, peaks.bf16_flops, peaks.int8_flops,
                       peaks.linear_bf16_flops, peaks.linear_int8_flops}) {
    EXPECT_GT(flops, 1e8);
    EXPECT_LT(flops, 1e14);
  }
  EXPECT_EQ(peaks.flops_of(WeightFormat::f16), peaks.fma_flops);
  EXPECT_EQ(peaks.flops_of(WeightFormat::bf16), peaks.bf16_flops);
  EXPECT_EQ(peaks.flops_of(WeightFormat::int4), peaks.int8_flops);
  if (!multiplies_bf16(peaks.tier)) {
    EXPECT_EQ(peaks.bf16_flops, peaks.fma_flops);
  }
  for (double bytes : {peaks.dram_read_bytes, peaks.dram_copy_bytes}) {
    EXPECT_GT(bytes, 1e7);
    EXPECT_LT(bytes, 1e13);
  }
  for (double bytes : {peaks.l2_read_bytes, peaks.l3_read_bytes}) {
    EXPECT_TRUE(bytes == 0 || bytes > 1e7) << bytes;
  }
}

}  // namespace
}  // namespace adder::bench
