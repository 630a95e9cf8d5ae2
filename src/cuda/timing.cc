#include "cuda/timing.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/check.h"
#include "cuda/device.h"

namespace adder::cuda {
namespace {

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "to create an event"); }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(const Event&) = delete;

  void record(Stream stream) { check(cudaEventRecord(event_, stream), "to record an event"); }
  double seconds_since(const Event& start) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "to read the time between events");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

OwnedStream::OwnedStream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "to create a stream");
}

OwnedStream::~OwnedStream() { cudaStreamDestroy(stream_); }

Graph::Graph(Stream stream, const std::function<void()>& body, GraphMemory memory) {
  const auto mode = memory == GraphMemory::fixed ? cudaStreamCaptureModeThreadLocal
                                                 : cudaStreamCaptureModeRelaxed;
  check(cudaStreamBeginCapture(stream, mode), "to begin a graph");
  cudaGraph_t graph = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "to capture a graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "to instantiate a graph");
  executable_ = executable;
}

Graph::~Graph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)); }

void Graph::launch(Stream stream) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream), "to launch a graph");
}

std::vector<double> time_on_device(Stream stream, int count, const std::function<void(int)>& body,
                                   const std::function<void(int)>& between) {
  std::vector<Event> starts(static_cast<std::size_t>(count));
  std::vector<Event> ends(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (between) between(i);
    starts[i].record(stream);
    body(i);
    ends[i].record(stream);
  }
  synchronize(stream);
  std::vector<double> out;
  out.reserve(starts.size());
  for (int i = 0; i < count; ++i) out.push_back(ends[i].seconds_since(starts[i]));
  return out;
}

}  // namespace adder::cuda
