#pragma once

// What this machine can do at most, measured: the bounds that benchmarks are held against.

#include <string>

#include "adder/thread_pool.h"
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
  /// Bytes read from caches and memory. A cache that the system does not tell the size of, or that
  /// does not exceed the one before, has 0.
  double l2_read_bytes = 0;
  double l3_read_bytes = 0;
  double dram_read_bytes = 0;
  /// Bytes read plus bytes written, memory to memory.
  double dram_copy_bytes = 0;
};

/// Takes about `seconds` for each figure, and a buffer of 256 MB to 1 GB meanwhile.
MachinePeaks measure_machine(ThreadPool& pool, double seconds = 0.25);

/// The processor's name.
std::string cpu_name();

}  // namespace adder::bench
