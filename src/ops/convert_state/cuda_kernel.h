#pragma once

// What cuda.cc hands to the kernel of cuda.cu. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"

namespace adder::cuda {

struct ConvertStateParams {
  const void* from;
  void* to;
  std::int64_t nsequences, size;  ///< size: elements of a sequence
};

/// From and To are the types of the elements. `vectors`: four elements can be moved at a time.
template <typename From, typename To>
void launch_convert_state(const ConvertStateParams& params, bool vectors, Stream stream);

}  // namespace adder::cuda
