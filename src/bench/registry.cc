#include "bench/op_benchmark.h"

namespace adder::bench {

// Defined in src/ops/<op>/bench.cc.
OpBenchmark rms_norm_benchmark();

std::vector<OpBenchmark> op_benchmarks() {
  return {
      rms_norm_benchmark(),
  };
}

}  // namespace adder::bench
