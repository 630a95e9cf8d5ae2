#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace adder {

/// Recycles the memory of activations: a forward pass asks for the same sizes again and again, and
/// fresh pages from the system cost more than the arithmetic of a small layer. Blocks go back to
/// the pool with the last tensor that uses them, from any thread, also after the pool itself is
/// gone. Peak memory is that of the largest call.
class MemoryPool {
 public:
  MemoryPool() : shared_(std::make_shared<Shared>()) {}

  /// Uninitialized memory, 64-byte aligned.
  std::shared_ptr<void> allocate(std::size_t bytes);

 private:
  struct Shared {
    std::mutex mutex;
    std::map<std::size_t, std::vector<std::shared_ptr<std::byte>>> free_blocks;  // by size
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace adder
