#pragma once

// What this machine can do at most, measured: the bounds that benchmarks are held against.

#include <string>

#include "adder/thread_pool.h"
#include "adder/weight_format.h"
#include "core/cpu_tier.h"

namespace adder::bench {

/// Rates per second of all threads of the pool together, with the kernels of the active tier. Each
/// is the fastest tenth of repeated measurements: other work on the machine only ever slows them.
struct MachinePeaks {
  std::string cpu;  ///< "Intel(R) Xeon(R) ...", from /proc/cpuinfo, or "unknown"
  CpuTier tier = CpuTier::baseline;
  int nthreads = 0;
  /// f32 multiply and add, counted apart, with all operands in registers.
  double fma_flops = 0;
  /// The same in the matrix product of `linear`, 256 tokens, 768 → 768, f32.
  double linear_flops = 0;
  /// Multiplications and additions of bf16 numbers with all operands in registers. Where the tier
  /// does not multiply them, what they cost widened: fma_flops.
  double bf16_flops = 0;
  /// Those of bytes, by the tier's dot product of four.
  double int8_flops = 0;
  /// Like linear_flops, with a weight in bf16, and with one of 8 bits by `quantized_linear`.
  double linear_bf16_flops = 0;
  double linear_int8_flops = 0;
  /// Bytes read from caches and memory. A cache that the system does not tell the size of, or that
  /// does not exceed the one before, has 0.
  double l2_read_bytes = 0;
  double l3_read_bytes = 0;
  double dram_read_bytes = 0;
  /// Bytes read plus bytes written, memory to memory.
  double dram_copy_bytes = 0;

  /// The arithmetic peak for weights of a format.
  double flops_of(WeightFormat format) const {
    if (is_quantized(format)) return int8_flops;
    return format == WeightFormat::bf16 ? bf16_flops : fma_flops;
  }
};

/// Takes about `seconds` for each figure, and a buffer of 256 MB to 1 GB meanwhile.
MachinePeaks measure_machine(ThreadPool& pool, double seconds = 0.25);

/// The processor's name.
std::string cpu_name();

}  // namespace adder::bench
