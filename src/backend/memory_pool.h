#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace adder {

/// Recycles the memory of activations: a forward pass asks for the same sizes again and again, and
/// fresh memory from the system costs more than the arithmetic of a small layer. Blocks go back to
/// the pool with the last tensor that uses them, from any thread, also after the pool itself is
/// gone.
class MemoryPool {
 public:
  /// Makes a block; throws if there is no memory.
  using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

  /// With `keeps_all`, a block that was made once stays where it is as long as the pool does.
  explicit MemoryPool(Allocate allocate, bool keeps_all = false)
      : shared_(std::make_shared<Shared>(std::move(allocate), keeps_all)) {}

  /// Uninitialized memory, aligned as that of `Allocate`. Where there is no more, blocks of other
  /// sizes that nobody uses are given back to the system first.
  std::shared_ptr<void> allocate(std::size_t bytes);

  using Block = std::shared_ptr<std::byte>;
  /// A block that does not come back to the pool; likewise where there is no more memory.
  Block make(std::size_t bytes) { return shared_->make(bytes); }
  /// Gives blocks that nobody uses back to the system. False if there are none, or all are kept.
  bool give_back_unused() { return shared_->give_back_unused(); }

 private:
  struct Shared {
    Shared(Allocate a, bool keeps) : allocate(std::move(a)), keeps_all(keeps) {}

    Block take(std::size_t size);
    Block make(std::size_t size);
    bool give_back_unused();

    const Allocate allocate;
    const bool keeps_all;
    std::mutex mutex;
    std::map<std::size_t, std::vector<Block>> free_blocks;  // by size
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace adder
