#pragma once

// Work that a device repeats by itself; needs no CUDA header.

#include <cstdint>
#include <functional>

#include "adder/cuda_stream.h"

namespace adder::cuda {

/// What a kernel sets to say whether there is another turn (cudaGraphConditionalHandle), or 0: the
/// host asks in another way.
using WhileHandle = std::uint64_t;

/// A graph of a conditional while node. `before` and `body` put work on the stream; in each, one
/// kernel sets the handle's condition. They must neither wait nor use memory that is not there when
/// the graph runs.
class WhileGraph {
 public:
  using Body = std::function<void(WhileHandle)>;

  /// Whether driver and runtime have such nodes (CUDA 12.4 or later).
  static bool is_supported();

  WhileGraph(Stream stream, const Body& before, const Body& body);
  ~WhileGraph();
  WhileGraph(const WhileGraph&) = delete;
  WhileGraph& operator=(const WhileGraph&) = delete;

  void launch(Stream stream) const;

 private:
  void* executable_ = nullptr;
};

}  // namespace adder::cuda
