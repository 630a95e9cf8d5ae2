#include "backend/memory_pool.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>

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
  return make(size);
}

MemoryPool::Block MemoryPool::Shared::make(std::size_t size) {
  try {
    return allocate(size);
  } catch (const std::exception&) {
    if (!give_back_unused()) throw;
  }
  return allocate(size);
}

bool MemoryPool::Shared::give_back_unused() {
  if (keeps_all) return false;
  std::vector<Block> unused;
  const std::lock_guard lock(mutex);
  for (auto& [size, blocks] : free_blocks) {
    unused.insert(unused.end(), std::make_move_iterator(blocks.begin()),
                  std::make_move_iterator(blocks.end()));
    blocks.clear();
  }
  return !unused.empty();
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
