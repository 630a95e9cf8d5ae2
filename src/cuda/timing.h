#pragma once

// Streams, events and graphs for measuring work on a device; needs no CUDA header.

#include <functional>
#include <memory>
#include <vector>

#include "adder/cuda_stream.h"

namespace adder::cuda {

/// A stream of the current device that does not wait for the legacy default stream.
class OwnedStream {
 public:
  OwnedStream();
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  operator Stream() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  Stream stream_ = nullptr;
};

/// Whether what is captured may ask for device memory while it is; what it got must outlive the
/// graph.
enum class GraphMemory { fixed, may_allocate };

/// Work that was put on a stream once, to be replayed without the cost of launching it.
class Graph {
 public:
  /// Captures what `body` puts on the stream; `body` must not wait.
  Graph(Stream stream, const std::function<void()>& body, GraphMemory memory = GraphMemory::fixed);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(Stream stream) const;

 private:
  void* executable_ = nullptr;
};

/// Device seconds of each of `count` calls of `body(i)`, one event before and one after each call;
/// waits for all. `between(i)` runs before each call, outside the measured time.
std::vector<double> time_on_device(Stream stream, int count, const std::function<void(int)>& body,
                                   const std::function<void(int)>& between = {});

}  // namespace adder::cuda
