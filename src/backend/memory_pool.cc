#include "backend/memory_pool.h"

#include <algorithm>
#include <bit>
#include <exception>

namespace adder {
namespace {

// Sizes are rounded up to an eighth of their power of two: few distinct ones, little waste.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step =
      std::max<std::size_t>(64, std::bit_floor(std::max<std::size_t>(bytes, 1)) / 8);
  return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

MemoryPool::Block MemoryPool::Shared::take(std::size_t size) {
  {
    const std::lock_guard lock(mutex);
    auto& blocks = free_blocks[size];
    if (!blocks.empty()) {
      Block block = std::move(blocks.back());
      blocks.pop_back();
      return block;
    }
  }
  try {
    return allocate(size);
  } catch (const std::exception&) {
    std::map<std::size_t, std::vector<Block>> unused;
    {
      const std::lock_guard lock(mutex);
      unused.swap(free_blocks);
    }
    if (unused.empty()) throw;
  }
  return allocate(size);
}

std::shared_ptr<void> MemoryPool::allocate(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  Block block = shared_->take(size);
  std::byte* pointer = block.get();
  return {pointer, [shared = shared_, block = std::move(block), size](void*) mutable {
            const std::lock_guard lock(shared->mutex);
            shared->free_blocks[size].push_back(std::move(block));
          }};
}

}  // namespace adder
