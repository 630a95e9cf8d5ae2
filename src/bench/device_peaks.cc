#include "bench/device_peaks.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "bench/device_matrix.h"
#include "core/check.h"
#include "core/half.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/timing.h"

namespace adder::bench {
namespace {

// The rate of `work` in the fastest tenth of repeated calls.
double best_rate(double work, double seconds, cuda::Stream stream,
                 const std::function<void()>& call) {
  const auto body = [&](int) { call(); };
  const double once_s = cuda::time_on_device(stream, 3, body).back();
  const int count = std::clamp(static_cast<int>(seconds / once_s), 10, 2000);
  std::vector<double> times = cuda::time_on_device(stream, count, body);
  std::sort(times.begin(), times.end());
  return work / times[times.size() / 10];
}

double copy_bytes(std::int64_t memory_bytes, double seconds, cuda::Stream stream) {
  // Well above the L2 cache.
  constexpr std::int64_t kMost = std::int64_t{2} << 30;
  const auto bytes = static_cast<std::size_t>(std::min(kMost, memory_bytes / 8));
  const auto from = cuda::allocate(bytes);
  const auto to = cuda::allocate(bytes);
  cuda::fill_bytes(from.get(), 0x5a, bytes, stream);
  return best_rate(2.0 * static_cast<double>(bytes), seconds, stream,
                   [&] { cuda::copy_on_device(to.get(), from.get(), bytes, stream); });
}

std::vector<bf16> random_matrix(int nrows, int ncolumns, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> out(static_cast<std::size_t>(nrows * ncolumns));
  std::generate(out.begin(), out.end(), [&] { return to_bf16(normal(engine)); });
  return out;
}

double matrix_flops(const MatrixKernel& kernel, int multiprocessors, double seconds,
                    cuda::Stream stream) {
  constexpr int kRows = MatrixKernel::kRows;
  const std::vector<bf16> a = random_matrix(kRows, kernel.depth, 1);
  const std::vector<bf16> b = random_matrix(kernel.columns, kernel.depth, 2);
  const Tensor a_device = cuda::to_device(ConstTensorView::of(a.data(), {kRows, kernel.depth}));
  const Tensor b_device =
      cuda::to_device(ConstTensorView::of(b.data(), {kernel.columns, kernel.depth}));
  const Tensor d_device =
      cuda::empty(DType::f32, std::array<std::int64_t, 2>{kRows, kernel.columns});
  const auto launch = [&](int iterations) {
    kernel.launch(a_device.as<bf16>(), b_device.as<bf16>(), d_device.as<float>(), iterations,
                  multiprocessors, stream);
  };

  launch(1);
  const Tensor d = cuda::to_host(d_device.view, stream);
  const double allowed = 1e-4 * std::sqrt(kernel.depth);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kernel.columns; ++column) {
      const bf16* a_row = a.data() + std::int64_t{row} * kernel.depth;
      const bf16* b_row = b.data() + std::int64_t{column} * kernel.depth;
      double truth = 0;
      for (int k = 0; k < kernel.depth; ++k) {
        truth += static_cast<double>(to_float(a_row[k])) * static_cast<double>(to_float(b_row[k]));
      }
      const double got = d.as<float>()[row * kernel.columns + column];
      check(std::abs(got - truth) <= allowed,
            "bench: {} gives {} in row {} and column {} of a product, expected {}",
            kernel.instruction, got, row, column, truth);
    }
  }

  constexpr int kIterations = 4000;  // a few milliseconds
  const double flops = 2.0 * kRows * kernel.columns * kernel.depth * kIterations *
                       kernel.products_per_multiprocessor * multiprocessors;
  return best_rate(flops, seconds, stream, [&] { launch(kIterations); });
}

}  // namespace

std::int64_t device_bytes_in_use() {
  return cuda::properties(cuda::current_device()).memory_bytes - cuda::free_bytes();
}

DevicePeaks measure_device(double seconds) {
  const int index = cuda::current_device();
  const cuda::DeviceProperties& device = cuda::properties(index);
  const MatrixKernel& kernel =
      device.compute_capability == 90 ? warpgroup_matrix_kernel() : warp_matrix_kernel();
  const cuda::OwnedStream stream;
  DevicePeaks peaks{.name = device.name,
                    .index = index,
                    .compute_capability = device.compute_capability,
                    .multiprocessors = device.multiprocessors,
                    .memory_bytes = device.memory_bytes,
                    .l2_bytes = device.l2_bytes,
                    .driver_version = device.driver_version,
                    .runtime_version = device.runtime_version,
                    .matrix_instruction = std::string(kernel.instruction)};
  peaks.copy_bytes = copy_bytes(device.memory_bytes, seconds, stream);
  peaks.matrix_flops = matrix_flops(kernel, device.multiprocessors, seconds, stream);
  return peaks;
}

}  // namespace adder::bench
