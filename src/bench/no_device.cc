// What a build without CUDA has in place of the benchmarks on devices.

#include "bench/device_benchmark.h"
#include "bench/device_peaks.h"
#include "bench/device_tuner.h"
#include "core/check.h"

namespace adder::bench {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail("this program was built without CUDA, expected a build with it for --device cuda");
}

}  // namespace

std::vector<DeviceOpBenchmark> device_op_benchmarks() { return {}; }
void select_device(int /*index*/) { fail_without_cuda(); }
std::int64_t device_bytes_in_use() { fail_without_cuda(); }
DevicePeaks measure_device(double /*seconds*/) { fail_without_cuda(); }
DeviceMeasurement measure(std::string_view /*op*/, const DeviceCase& /*shape*/,
                          double /*min_seconds*/) {
  fail_without_cuda();
}

std::vector<DeviceTunable> device_tunables() { return {}; }
DeviceTunable device_tunable(std::string_view /*operation*/, std::string_view /*shape*/) {
  fail_without_cuda();
}
std::string why_not_measurable(const DeviceTunable& /*tunable*/) { fail_without_cuda(); }
std::vector<TuningCandidate> candidates_of(const DeviceTunable& /*tunable*/) {
  fail_without_cuda();
}
TuningResult measure_candidates(const DeviceTunable& /*tunable*/,
                                const tune::SearchOptions& /*options*/) {
  fail_without_cuda();
}
cuda::DeviceModel device_model() { fail_without_cuda(); }

}  // namespace adder::bench
