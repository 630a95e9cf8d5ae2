#pragma once

// Benchmarks of operations on a CUDA device. An operation's bench_cuda.cc defines one function that
// returns a DeviceOpBenchmark; src/bench/device_registry.cc lists them all, and
// `adder bench op NAME --device cuda` runs them. In a build without CUDA there are none.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "adder/cuda_stream.h"
#include "bench/op_benchmark.h"

namespace adder::bench {

/// An operation's arguments with memory of their own on the current device.
struct DeviceWork {
  /// Puts one call on the stream: neither waits nor allocates. Repeated calls do the same work.
  std::function<void(cuda::Stream)> call;
  /// The error of the first call's result over as much of it as the definition can be computed for
  /// in a moment: the largest, see `largest_error`, or ‖got − truth‖ / ‖truth‖. Called once, when
  /// the call is done.
  std::function<double()> error;
  /// Which of several ways the call is computed by, for people, and whether that was measured
  /// (`adder tune`) rather than built in. Empty where there is one way only.
  std::string choice = {};
  bool tuned = false;
};

/// One shape of one operation.
struct DeviceCase {
  std::string shape;  ///< for instance "8 x 4096 tokens, 5376 channels, bf16"
  double bytes = 0;   ///< that the operation must move to and from memory, at least
  double flops = 0;   ///< that the algorithm needs, multiply and add counted apart
  double allowed_error = 0;
  /// Allocates and fills inputs, with other random numbers for another seed, and poisons outputs.
  std::function<DeviceWork(std::uint64_t seed)> prepare;
};

struct DeviceOpBenchmark {
  std::string_view name;
  std::string_view description;
  std::vector<DeviceCase> cases;
};

struct DeviceMeasurement {
  double error = 0;
  /// Device seconds of a call, from replays of a graph that holds a call on each copy of the
  /// arguments, all copies together being larger than the L2 cache.
  Timing device;
  /// Seconds that a call takes if the host launches call after call and waits for the last.
  Timing wall;
  int copies = 0;
  std::string choice;  ///< see DeviceWork
  bool tuned = false;
};

/// Copies of arguments of `bytes` so that none is left in an L2 cache of `l2_bytes` when its turn
/// comes again: two at least, and at most 512, which only tiny arguments would exceed.
int copies_beyond_cache(double bytes, std::int64_t l2_bytes);

/// Checks a case against the definition, then times it for about `min_seconds` on the device and as
/// long from the host. Throws adder::Error if the result is wrong.
DeviceMeasurement measure(std::string_view op, const DeviceCase& shape, double min_seconds);

/// All operations that have one, in the order of the model's data flow.
std::vector<DeviceOpBenchmark> device_op_benchmarks();

/// Makes CUDA device `index` the calling thread's. Throws if there is no such device, or if this
/// build has no CUDA.
void select_device(int index);

/// The largest |got - truth| / (|truth| + rms of truth).
double largest_error(const std::vector<float>& got, const std::vector<double>& truth);

/// ‖got − truth‖ / ‖truth‖. Of many results the largest error would say more about the one among
/// them with the most cancellation.
double relative_error(const std::vector<float>& got, const std::vector<double>& truth);

}  // namespace adder::bench
