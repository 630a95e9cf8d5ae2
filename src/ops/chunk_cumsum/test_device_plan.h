#pragma once

// Chunk plans on a CUDA device, made there or brought there, and looked at from the host.

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "ops/chunk_cumsum/chunk_plan.h"

namespace adder::test {

/// A copy in memory of the current device.
class PlanOnDevice {
 public:
  explicit PlanOnDevice(const ChunkPlan& host)
      : chunks_(copy<Chunk>(host.chunks)),
        first_chunk_(copy<std::int64_t>(host.first_chunk)),
        segments_(copy<std::int32_t>(host.segments)) {
    plan = {
        .chunks = {reinterpret_cast<const Chunk*>(chunks_.get()), host.chunks.size()},
        .first_chunk = {reinterpret_cast<const std::int64_t*>(first_chunk_.get()),
                        host.first_chunk.size()},
        .chunk_size = host.chunk_size,
        .segments = {reinterpret_cast<const std::int32_t*>(segments_.get()), host.segments.size()},
        .device = {DeviceType::cuda, cuda::current_device()}};
  }

  ChunkPlan plan;

 private:
  template <typename T>
  static std::shared_ptr<std::byte> copy(std::span<const T> values) {
    auto memory = cuda::allocate(values.size_bytes());
    cuda::copy_to_device(memory.get(), values.data(), values.size_bytes(), nullptr);
    return memory;
  }

  std::shared_ptr<std::byte> chunks_, first_chunk_, segments_;
};

/// A copy in host memory.
struct PlanOnHost {
  explicit PlanOnHost(const ChunkPlan& device)
      : chunks(copy<Chunk>(device.chunks)),
        first_chunk(copy<std::int64_t>(device.first_chunk)),
        segments(copy<std::int32_t>(device.segments)) {
    plan = {.chunks = chunks,
            .first_chunk = first_chunk,
            .chunk_size = device.chunk_size,
            .segments = segments};
  }

  std::vector<Chunk> chunks;
  std::vector<std::int64_t> first_chunk;
  std::vector<std::int32_t> segments;
  ChunkPlan plan;

 private:
  template <typename T>
  static std::vector<T> copy(std::span<const T> values) {
    std::vector<T> out(values.size());
    cuda::copy_to_host(out.data(), values.data(), values.size_bytes(), nullptr);
    return out;
  }
};

}  // namespace adder::test
