#include "bench/device_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "core/check.h"
#include "core/tensor.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/timing.h"

namespace adder::bench {
namespace {

/// Copies of a call's outputs.
std::vector<Tensor> copy_of(const std::vector<TensorView>& outputs) {
  std::vector<Tensor> out;
  for (const TensorView& view : outputs) {
    out.push_back(cuda::empty(view.dtype, view.dims()));
    cuda::copy_on_device(out.back().view.data, view.data,
                         static_cast<std::size_t>(view.size_bytes()), nullptr);
  }
  cuda::synchronize(nullptr);
  return out;
}

void poison(const std::vector<TensorView>& outputs) {
  constexpr unsigned char kNaN = 0xff;
  for (const TensorView& view : outputs) {
    cuda::fill_bytes(view.data, kNaN, static_cast<std::size_t>(view.size_bytes()), nullptr);
  }
  cuda::synchronize(nullptr);
}

/// One call into poisoned outputs.
void run_once(const TuningWork& work, std::size_t candidate, cuda::Stream stream) {
  poison(work.outputs);
  work.call(candidate, stream);
  cuda::synchronize(stream);
}

/// Fills in `difference` and `right`. False if it was stopped.
bool check_candidates(const DeviceTunable& tunable, const TuningWork& work,
                      const tune::SearchOptions& options, cuda::Stream stream,
                      TuningResult& result) {
  run_once(work, 0, stream);
  result.error = work.error();
  // Written so that NaN is refused too.
  check(
      result.error <= tunable.allowed_error,
      "tune: at {} the built-in choice of {} ({}) has an error of {:.3g}, expected at most {:.3g}",
      tunable.shape, tunable.operation, work.candidates[0].name, result.error,
      tunable.allowed_error);
  const std::vector<Tensor> expected = copy_of(work.outputs);
  for (std::size_t i = 0; i < work.candidates.size(); ++i) {
    CandidateResult& out = result.candidates.emplace_back();
    out.candidate = work.candidates[i];
    if (i == 0) continue;
    if (options.stop && options.stop()) return false;
    run_once(work, i, stream);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const double difference = relative_difference(work.outputs[k], expected[k].view);
      out.right = out.right && difference <= 2 * tunable.allowed_error;
      out.difference = std::max(out.difference, difference);
    }
  }
  return true;
}

/// The calls of a candidate on all copies of the arguments, captured when they are first wanted.
class Replays {
 public:
  Replays(const std::vector<TuningWork>& work, std::vector<std::size_t> candidates,
          cuda::Stream stream)
      : work_(work),
        candidates_(std::move(candidates)),
        stream_(stream),
        graphs_(candidates_.size()) {}

  /// Seconds of a call in each of `count` replays.
  std::vector<double> time(std::size_t i, int count) {
    std::unique_ptr<cuda::Graph>& graph = graphs_[i];
    if (graph == nullptr) {
      graph = std::make_unique<cuda::Graph>(stream_, [&] {
        for (const TuningWork& one : work_) one.call(candidates_[i], stream_);
      });
    }
    std::vector<double> out =
        cuda::time_on_device(stream_, count, [&](int) { graph->launch(stream_); });
    for (double& seconds : out) seconds /= static_cast<double>(work_.size());
    return out;
  }

 private:
  const std::vector<TuningWork>& work_;
  std::vector<std::size_t> candidates_;
  cuda::Stream stream_;
  std::vector<std::unique_ptr<cuda::Graph>> graphs_;
};

/// The search counts the time of what it sees, and it sees a call where a replay makes many.
tune::SearchOptions per_call(tune::SearchOptions options, int copies) {
  options.seconds /= copies;
  return options;
}

}  // namespace

std::string why_not_measurable(const DeviceTunable& tunable) {
  // Two copies of the arguments, a copy of the outputs, and workspaces.
  const double needed = 3 * tunable.bytes;
  const auto memory = static_cast<double>(cuda::properties(cuda::current_device()).memory_bytes);
  if (needed <= 0.9 * memory) return {};
  return fmt::format("it needs {:.0f} GB, and the device has {:.0f}", needed * 1e-9, memory * 1e-9);
}

TuningResult measure_candidates(const DeviceTunable& tunable, const tune::SearchOptions& options) {
  const cuda::OwnedStream stream;
  TuningResult result;
  std::vector<TuningWork> work{tunable.prepare(1)};
  cuda::synchronize(nullptr);  // inputs may be computed there, for which `stream` does not wait
  if (!check_candidates(tunable, work[0], options, stream, result)) {
    result.complete = false;
    return result;
  }

  const std::int64_t l2_bytes = cuda::properties(cuda::current_device()).l2_bytes;
  result.copies = copies_beyond_cache(tunable.bytes, l2_bytes);
  while (static_cast<int>(work.size()) < result.copies) {
    work.push_back(tunable.prepare(work.size() + 1));
  }
  cuda::synchronize(nullptr);
  std::vector<std::size_t> right;
  for (std::size_t i = 0; i < result.candidates.size(); ++i) {
    if (result.candidates[i].right) right.push_back(i);
  }
  Replays replays(work, right, stream);
  const tune::TimeRuns time = [&](std::size_t i, int count) { return replays.time(i, count); };
  const tune::SearchResult found =
      tune::search(right.size(), time, per_call(options, result.copies));
  for (std::size_t i = 0; i < right.size(); ++i) {
    result.candidates[right[i]].times = found.times[i];
  }
  result.best = right[found.best];
  result.complete = found.complete;
  return result;
}

std::vector<TuningCandidate> candidates_of(const DeviceTunable& tunable) {
  return tunable.prepare(1).candidates;
}

cuda::DeviceModel device_model() { return cuda::properties(cuda::current_device()); }

}  // namespace adder::bench
