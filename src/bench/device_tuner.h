#pragma once

// Measuring the ways in which an operation can compute a call on a CUDA device: each is checked,
// then timed as `bench op` times, and the fastest found by tune/search.h. An operation's
// bench_tune.cc makes the calls; `adder tune` runs them. In a build without CUDA there are none.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "adder/cuda_device.h"
#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "tune/search.h"

namespace adder::bench {

// clang-tidy sees the check inside of a JSON value's move, which cannot fail, as a throw.
// NOLINTBEGIN(bugprone-exception-escape)

/// A way to compute a call.
struct TuningCandidate {
  std::string name;       ///< for people
  nlohmann::json choice;  ///< as tuning files hold it
};

/// A call with memory of its own on the current device.
struct TuningWork {
  /// The built-in choice is the first.
  std::vector<TuningCandidate> candidates;
  /// Puts the call on the stream: neither waits nor allocates.
  std::function<void(std::size_t candidate, cuda::Stream)> call;
  /// What a call writes, contiguous.
  std::vector<TensorView> outputs;
  /// The error of what the outputs hold against the definition, over a part of it.
  std::function<double()> error;
};

/// A shape of an operation that has several ways to compute it.
struct DeviceTunable {
  std::string operation;
  std::int64_t kernel_version = 0;
  std::string shape;         ///< for people: "batch 4, seqlen 4096, ..."
  nlohmann::json shape_key;  ///< as tuning files hold it
  double bytes = 0;          ///< of its tensors that one call reads and writes
  double allowed_error = 0;
  /// Other random numbers for another seed.
  std::function<TuningWork(std::uint64_t seed)> prepare;
};

struct CandidateResult {
  TuningCandidate candidate;
  /// ‖its outputs − those of the built-in choice‖ / ‖those‖, the largest of the outputs. For two
  /// choices that are both right at most twice the allowed error.
  double difference = 0;
  bool right = true;           ///< only then timed
  tune::CandidateTimes times;  ///< of a call on the device
};

struct TuningResult {
  std::vector<CandidateResult> candidates;
  std::size_t best = 0;
  double error = 0;  ///< of the built-in choice
  int copies = 0;    ///< of the arguments, in turn, so that none is found in the L2 cache
  bool complete = true;
};

// NOLINTEND(bugprone-exception-escape)

/// Why the shape cannot be measured on the current device, as a sentence's end ("it needs 12 GB,
/// ..."), or nothing if it can.
std::string why_not_measurable(const DeviceTunable& tunable);

/// Measures the candidates on the current device. Throws adder::Error if the built-in choice's
/// result is wrong.
TuningResult measure_candidates(const DeviceTunable& tunable, const tune::SearchOptions& options);

/// The candidates of a shape, the built-in choice first.
std::vector<TuningCandidate> candidates_of(const DeviceTunable& tunable);

/// The shapes that `bench op` measures, of all operations that have something to choose.
std::vector<DeviceTunable> device_tunables();

/// The shape of an operation's name and a text such as "seqlen=3000,nheads=80,...": see the
/// operation's tuning.h.
DeviceTunable device_tunable(std::string_view operation, std::string_view shape);

/// What tuning files know the current device by.
cuda::DeviceModel device_model();

}  // namespace adder::bench
