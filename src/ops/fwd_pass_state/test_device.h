#pragma once

// The inputs of the operations on chunks on a CUDA device.

#include <cstdint>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "ops/chunk_cumsum/test_device_plan.h"
#include "ops/fwd_pass_state/test_case.h"

namespace adder::test {

/// A copy in device memory with the same shape and strides, gaps included, whose first element lies
/// `misalignment` elements after an aligned address.
inline Tensor place_on_device(const ConstTensorView& host, std::int64_t misalignment = 0) {
  if (!host.defined()) return {};
  std::int64_t extent = host.numel() == 0 ? 0 : 1;
  for (int i = 0; i < host.rank && extent > 0; ++i) extent += (host.dim(i) - 1) * host.stride(i);
  const std::size_t size = size_of(host.dtype);
  const std::size_t before = static_cast<std::size_t>(misalignment) * size;
  const std::size_t bytes = static_cast<std::size_t>(extent) * size;
  auto memory = cuda::allocate(before + bytes);
  TensorView view(memory.get() + before, host.dtype, host.dims(),
                  {DeviceType::cuda, cuda::current_device()});
  view.strides = host.strides;
  cuda::copy_to_device(view.data, host.data, bytes, nullptr);
  return {view, memory};
}

struct ChunkInputsOnDevice {
  explicit ChunkInputsOnDevice(const ChunkInputs& in, std::int64_t misalignment = 0)
      : plan(in.plan),
        x(place_on_device(in.x.view, misalignment)),
        B(place_on_device(in.B.view, misalignment)),
        C(place_on_device(in.C.view, misalignment)),
        z(place_on_device(in.z.view, misalignment)),
        D(place_on_device(in.D.view, misalignment)),
        dt(place_on_device(in.dt.view, misalignment)),
        dA_cumsum(place_on_device(in.dA_cumsum.view, misalignment)) {}

  PlanOnDevice plan;
  Tensor x, B, C, z, D, dt, dA_cumsum;
};

/// Calls `run` with inputs whose plan makes no sense in one way after another. Nothing is promised
/// of the results, but nothing else may be touched, and the call must end.
template <typename Run>
void with_senseless_plans(const ChunkInputs& in, Run&& run) {
  for (int round = 0; round < 6; ++round) {
    ChunkInputs bad = in;
    const std::int64_t large = std::int64_t{1} << 60;
    Chunk& chunk = bad.chunks[1];
    if (round == 0) chunk.begin = large;
    if (round == 1) chunk.begin = -5;
    if (round == 2) chunk.length = large;
    if (round == 3) chunk.row = 2;
    if (round == 4) chunk.sequence = large;
    if (round == 5) chunk.length = -1;
    bad.plan.chunks = bad.chunks;
    run(bad);
  }
}

}  // namespace adder::test
