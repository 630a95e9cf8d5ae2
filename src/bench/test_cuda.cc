#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "adder/error.h"
#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "bench/device_peaks.h"
#include "bench/device_tuner.h"
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

// Copies 8 MB in as many pieces as the candidate says, one after another, or leaves the last row
// out (the last candidate).
DeviceTunable copy_tunable(std::vector<std::int64_t> pieces, bool wrong_built_in = false) {
  return {.operation = "copy",
          .kernel_version = 1,
          .shape = "4096 x 1024, bf16",
          .shape_key = {{"rows", kRows}},
          .bytes = 2.0 * 2.0 * kRows * kColumns,
          .allowed_error = 0,
          .prepare = [=](std::uint64_t seed) {
            const Tensor from = device_normals(DType::bf16, {kRows, kColumns}, seed);
            const Tensor to = device_poison(DType::bf16, {kRows, kColumns});
            TuningWork work;
            for (std::int64_t count : pieces) {
              work.candidates.push_back({std::to_string(count) + " pieces", {{"pieces", count}}});
            }
            work.candidates.push_back({"too short", {{"pieces", 0}}});
            work.call = [=](std::size_t candidate, cuda::Stream stream) {
              const bool wrong = wrong_built_in || candidate == pieces.size();
              const std::int64_t count = wrong ? 1 : pieces[candidate];
              const std::int64_t rows = kRows / count - (wrong ? 1 : 0);
              for (std::int64_t i = 0; i < count; ++i) {
                cuda::copy_on_device(to.view.narrow(0, i * rows, rows).data,
                                     from.view.narrow(0, i * rows, rows).data,
                                     static_cast<std::size_t>(rows * kColumns * 2), stream);
              }
            };
            work.outputs = {to.view};
            work.error = [=] { return relative_difference(to.view, from.view); };
            return work;
          }};
}

TEST_F(DeviceBench, FindsTheFastestCandidateAmongTheRightOnes) {
  const DeviceTunable tunable = copy_tunable({64, 1, 256});
  EXPECT_EQ(why_not_measurable(tunable), "");
  EXPECT_EQ(candidates_of(tunable).size(), 4U);
  const TuningResult result = measure_candidates(tunable, {.seconds = 0.02});
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.error, 0);
  ASSERT_EQ(result.candidates.size(), 4U);
  EXPECT_EQ(result.best, 1U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(result.candidates[i].right) << i;
    EXPECT_EQ(result.candidates[i].difference, 0) << i;
    EXPECT_GT(result.candidates[i].times.median_s, 0) << i;
  }
  EXPECT_GT(result.candidates[0].times.median_s, result.candidates[1].times.median_s);
  EXPECT_FALSE(result.candidates[3].right);
  EXPECT_EQ(result.candidates[3].times.runs, 0);
  EXPECT_EQ(result.candidates[1].candidate.choice["pieces"], 1);
}

TEST_F(DeviceBench, DoesNotTuneWhatIsWrongOrTooLarge) {
  EXPECT_THROW(measure_candidates(copy_tunable({1}, true), {.seconds = 0.02}), Error);
  DeviceTunable large = copy_tunable({1});
  large.bytes = 1e15;
  EXPECT_NE(why_not_measurable(large), "");
  const TuningResult stopped =
      measure_candidates(copy_tunable({1, 2}), {.seconds = 0.02, .stop = [] { return true; }});
  EXPECT_FALSE(stopped.complete);
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

TEST_F(DeviceBench, DifferencesAreOfAllElements) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (std::int64_t n : {1, 255, 1000, 3'000'001}) {
      const Tensor one = device_uniforms(dtype, {n}, 1, 1, 0);
      const Tensor other = device_uniforms(dtype, {n}, 1, 1, 0);
      EXPECT_EQ(relative_difference(one.view, other.view), 0);
      // The last element alone.
      const Tensor three = device_uniforms(dtype, {1}, 3, 3, 0);
      cuda::copy_on_device(other.view.narrow(0, n - 1, 1).data, three.view.data, size_of(dtype),
                           nullptr);
      const auto count = static_cast<double>(n);
      EXPECT_NEAR(relative_difference(other.view, one.view), 2 / std::sqrt(count), 1e-12);
      EXPECT_NEAR(relative_difference(one.view, other.view), 2 / std::sqrt(count + 8), 1e-12);
      const Tensor nothing = device_poison(dtype, {1});
      cuda::copy_on_device(other.view.data, nothing.view.data, size_of(dtype), nullptr);
      EXPECT_TRUE(std::isnan(relative_difference(one.view, other.view)));
      EXPECT_TRUE(std::isnan(relative_difference(other.view, one.view)));
    }
  }
  const Tensor zeros = device_uniforms(DType::f32, {4}, 0, 0, 0);
  EXPECT_EQ(relative_difference(zeros.view, zeros.view), 0);
  EXPECT_THROW(relative_difference(zeros.view, zeros.view.narrow(0, 0, 3)), Error);
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
