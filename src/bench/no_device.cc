// What a build without CUDA has in place of the benchmarks on devices.

#include "bench/device_benchmark.h"
#include "bench/device_peaks.h"
#include "core/check.h"

namespace adder::bench {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail("bench: this program was built without CUDA, expected a build with it for --device cuda");
}

}  // namespace

std::vector<DeviceOpBenchmark> device_op_benchmarks() { return {}; }
void select_device(int /*index*/) { fail_without_cuda(); }
DevicePeaks measure_device(double /*seconds*/) { fail_without_cuda(); }
DeviceMeasurement measure(std::string_view /*op*/, const DeviceCase& /*shape*/,
                          double /*min_seconds*/) {
  fail_without_cuda();
}

}  // namespace adder::bench
