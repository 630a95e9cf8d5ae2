#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "adder/error.h"
#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "bench/device_peaks.h"
#include "cuda/memory.h"
#include "tests/support/device.h"

namespace adder::bench {
namespace {

using DeviceBench = test::OnDevice;

constexpr std::int64_t kRows = 1 << 12;
constexpr std::int64_t kColumns = 1 << 10;

// Copies 8 MB, or leaves the last row out.
DeviceCase copy_case(std::int64_t rows) {
  return {.shape = "4096 x 1024, bf16",
          .bytes = 2.0 * 2.0 * kRows * kColumns,
          .flops = 0,
          .allowed_error = 0,
          .prepare = [rows](std::uint64_t seed) {
            const Tensor from = device_normals(DType::bf16, {kRows, kColumns}, seed);
            const Tensor to = device_poison(DType::bf16, {kRows, kColumns});
            const auto bytes = static_cast<std::size_t>(rows * kColumns * 2);
            return DeviceWork{
                .call =
                    [=](cuda::Stream stream) {
                      cuda::copy_on_device(to.view.data, from.view.data, bytes, stream);
                    },
                .error =
                    [=] {
                      return largest_error(read_rows(to.view, kRows - 2, 2),
                                           to_doubles(read_rows(from.view, kRows - 2, 2)));
                    }};
          }};
}

TEST_F(DeviceBench, ChecksAndTimes) {
  const DeviceMeasurement measured = measure("copy", copy_case(kRows), 0.02);
  EXPECT_EQ(measured.error, 0);
  EXPECT_GE(measured.copies, 2);
  for (const Timing& timing : {measured.device, measured.wall}) {
    EXPECT_GT(timing.p10_s, 0);
    EXPECT_GE(timing.median_s, timing.p10_s);
    EXPECT_GE(timing.p90_s, timing.median_s);
    EXPECT_GE(timing.calls, 5 * measured.copies);
  }
}

TEST_F(DeviceBench, DoesNotTimeWrongResults) {
  EXPECT_THROW(measure("copy", copy_case(kRows - 1), 0.02), Error);
}

TEST_F(DeviceBench, RandomNumbersHaveTheDistributionAskedFor) {
  const auto mean_and_deviation = [](const std::vector<float>& values) {
    const auto n = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
    double squares = 0;
    for (float v : values) squares += (v - mean) * (v - mean);
    return std::pair(mean, std::sqrt(squares / n));
  };
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto [mean, deviation] =
        mean_and_deviation(read_rows(device_normals(dtype, {100, 1000}, 3).view, 0, 100));
    EXPECT_NEAR(mean, 0, 0.02);
    EXPECT_NEAR(deviation, 1, 0.02);
    const auto uniform = read_rows(device_uniforms(dtype, {100, 1000}, -1, 3, 3).view, 0, 100);
    const auto [middle, width] = mean_and_deviation(uniform);
    EXPECT_NEAR(middle, 1, 0.02);
    EXPECT_NEAR(width, 4 / std::sqrt(12.0), 0.02);
    EXPECT_NE(uniform, read_rows(device_uniforms(dtype, {100, 1000}, -1, 3, 4).view, 0, 100));
  }
}

TEST_F(DeviceBench, RowsAreReadWithoutTheirGaps) {
  const std::vector<float> memory{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const Tensor device = cuda::to_device(ConstTensorView::of(memory.data(), {3, 4}));
  EXPECT_EQ(read_rows(device.view.narrow(1, 1, 2), 1, 2), (std::vector<float>{5, 6, 9, 10}));
}

TEST_F(DeviceBench, MeasuresThePeaks) {
  const DevicePeaks peaks = measure_device(0.02);
  EXPECT_FALSE(peaks.name.empty());
  EXPECT_GT(peaks.copy_bytes, 1e10);
  EXPECT_GT(peaks.matrix_flops, 1e12);
}

TEST(DeviceBenchmark, CopiesDoNotFitTheCache) {
  constexpr std::int64_t kCache = 60'000'000;
  EXPECT_EQ(copies_beyond_cache(1e9, kCache), 2);
  EXPECT_EQ(copies_beyond_cache(80e6, kCache), 3);
  EXPECT_EQ(copies_beyond_cache(1e6, kCache), 240);
  EXPECT_EQ(copies_beyond_cache(1.0, kCache), 512);
}

TEST(DeviceBenchmark, ErrorsAreRelativeToTheElementAndTheWhole) {
  EXPECT_EQ(largest_error({1, -1}, {1, -1}), 0);
  EXPECT_DOUBLE_EQ(largest_error({2, -1}, {1, -1}), 0.5);
  EXPECT_EQ(largest_error({NAN, -1}, {1, -1}), INFINITY);
  EXPECT_THROW(largest_error({1}, {1, 2}), Error);
}

TEST(DeviceBenchmark, RelativeErrorsAreOfTheWhole) {
  EXPECT_EQ(relative_error({3, -4}, {3, -4}), 0);
  EXPECT_DOUBLE_EQ(relative_error({3, -3}, {3, -4}), 0.2);
  EXPECT_EQ(relative_error({NAN, -4}, {3, -4}), INFINITY);
  EXPECT_THROW(relative_error({1}, {1, 2}), Error);
}

}  // namespace
}  // namespace adder::bench
