#include "bench/machine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "bench/kernels.h"
#include "bench/op_benchmark.h"
#include "core/tensor.h"
#include "ops/linear/linear.h"
#include "ops/quantized_linear/quantized_linear.h"

namespace adder::bench {
namespace {

// Where results go that nobody needs, so that the work for them is done.
std::atomic<float> sink;

double rate(double work, const Timing& timing) { return work / timing.p10_s; }

double fma_flops(ThreadPool& pool, double seconds) {
  constexpr std::int64_t kRounds = 200'000;
  const MachineKernels& kernels = machine_kernels();
  const Timing timing = time_calls(
      [&] {
        pool.parallel_for(pool.nthreads(), 1,
                          [&](std::int64_t, std::int64_t) { sink = kernels.fma(kRounds, 0.999F); });
      },
      seconds);
  return rate(static_cast<double>(kRounds * kernels.fma_flops_per_round * pool.nthreads()), timing);
}

double product_flops(const ProductKernel& kernel, ThreadPool& pool, double seconds) {
  // A few milliseconds, whatever a round is.
  constexpr std::int64_t kOperations = 200'000'000;
  const std::int64_t rounds = std::max<std::int64_t>(1, kOperations / kernel.operations_per_round);
  const Timing timing = time_calls(
      [&] {
        pool.parallel_for(pool.nthreads(), 1, [&](std::int64_t, std::int64_t) {
          sink = static_cast<float>(kernel.run(rounds, 0x3f803f80));
        });
      },
      seconds);
  return rate(static_cast<double>(rounds * kernel.operations_per_round * pool.nthreads()), timing);
}

// Of the matrix product of a weight stored in `format`.
double linear_flops(WeightFormat format, ThreadPool& pool, double seconds) {
  constexpr std::int64_t kTokens = 256;
  constexpr std::int64_t kIn = 768;
  constexpr std::int64_t kOut = 768;
  constexpr double kFlops = 2.0 * kTokens * kIn * kOut;
  const Tensor x = Tensor::zeros(DType::f32, {kTokens, kIn});
  const Tensor y = Tensor::zeros(DType::f32, {kTokens, kOut});
  const Tensor source = Tensor::zeros(DType::f32, {kOut, kIn});
  const LinearArgs args{.x = x.view, .bias = {}, .y = y.view, .round_inputs = true};
  if (is_quantized(format)) {
    const QuantizedMatrix weight = cpu::quantize_linear(source.view, format, {}, "a weight", pool);
    const std::size_t bytes = cpu::quantized_linear_workspace_bytes(args, weight);
    const std::shared_ptr<std::byte> workspace = allocate_host(bytes);
    return rate(kFlops, time_calls(
                            [&] {
                              cpu::quantized_linear(args, weight, {workspace.get(), bytes}, pool);
                            },
                            seconds));
  }
  const cpu::PackedLinear weight = cpu::pack_linear(source.view, *dtype_of(format), pool);
  return rate(kFlops, time_calls([&] { cpu::linear(args, weight, pool); }, seconds));
}

// Every thread reads its own `floats` of the buffer `repetitions` times in a call.
double read_bytes(ThreadPool& pool, const Tensor& buffer, std::int64_t floats,
                  std::int64_t repetitions, double seconds) {
  const auto* data = buffer.as<float>();
  const MachineKernels& kernels = machine_kernels();
  const Timing timing = time_calls(
      [&] {
        pool.parallel_for(pool.nthreads(), 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t thread = begin; thread < end; ++thread) {
            for (std::int64_t r = 0; r < repetitions; ++r) {
              sink = kernels.read(data + thread * floats, floats);
            }
          }
        });
      },
      seconds);
  return rate(4.0 * static_cast<double>(floats * repetitions * pool.nthreads()), timing);
}

double copy_bytes(ThreadPool& pool, const Tensor& buffer, double seconds) {
  const std::int64_t half = buffer.view.numel() / 2;
  const auto* from = buffer.as<float>();
  auto* to = buffer.as<float>() + half;
  const Timing timing = time_calls(
      [&] {
        pool.parallel_for(half, 1, [&](std::int64_t begin, std::int64_t end) {
          std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin) * 4);
        });
      },
      seconds);
  return rate(8.0 * static_cast<double>(half), timing);
}

// Bytes of a cache, 0 if the system does not tell.
std::int64_t cache_bytes(int name) { return std::max<std::int64_t>(0, sysconf(name)); }

}  // namespace

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

MachinePeaks measure_machine(ThreadPool& pool, double seconds) {
  constexpr std::int64_t kMB = 1 << 20;
  const std::int64_t nthreads = pool.nthreads();
  const std::int64_t l2 = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  const std::int64_t l3 = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  MachinePeaks peaks{.cpu = cpu_name(), .tier = active_cpu_tier(), .nthreads = pool.nthreads()};
  peaks.fma_flops = fma_flops(pool, seconds);
  const ProductKernel* bf16 = bf16_peak_kernel();
  peaks.bf16_flops = bf16 != nullptr ? product_flops(*bf16, pool, seconds) : peaks.fma_flops;
  peaks.int8_flops = product_flops(int8_peak_kernel(), pool, seconds);
  peaks.linear_flops = linear_flops(WeightFormat::f32, pool, seconds);
  peaks.linear_bf16_flops = linear_flops(WeightFormat::bf16, pool, seconds);
  peaks.linear_int8_flops = linear_flops(WeightFormat::int8, pool, seconds);

  // Well above L3, so that little of it is left there from one pass to the next.
  const std::int64_t bytes = std::clamp(4 * l3, 256 * kMB, 1024 * kMB);
  const Tensor buffer = Tensor::empty(DType::f32, {bytes / 4});
  auto* data = buffer.as<float>();
  pool.parallel_for(bytes / 4, 1, [&](std::int64_t begin, std::int64_t end) {
    std::fill(data + begin, data + end, 1.0F);
  });
  const auto read = [&](std::int64_t bytes_per_thread, std::int64_t repetitions) {
    const std::int64_t floats = bytes_per_thread / 4 / 1024 * 1024;  // whole cache lines
    return read_bytes(pool, buffer, floats, repetitions, seconds);
  };
  if (l2 > 0) peaks.l2_read_bytes = read(l2 / 2, 16);
  // Each thread's part must miss L2, and all parts together must fit L3.
  if (l2 > 0 && 3 * l2 * nthreads <= l3 / 2) peaks.l3_read_bytes = read(3 * l2, 4);
  peaks.dram_read_bytes = read(bytes / nthreads, 1);
  peaks.dram_copy_bytes = copy_bytes(pool, buffer, seconds);
  return peaks;
}

}  // namespace adder::bench
