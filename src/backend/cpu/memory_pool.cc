#include "backend/cpu/memory_pool.h"

#include <algorithm>
#include <bit>

#include "core/tensor.h"

namespace adder {
namespace {

// Sizes are rounded up to an eighth of their power of two: few distinct ones, little waste.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step =
      std::max<std::size_t>(64, std::bit_floor(std::max<std::size_t>(bytes, 1)) / 8);
  return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

std::shared_ptr<void> MemoryPool::allocate(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  std::shared_ptr<std::byte> block;
  {
    const std::lock_guard lock(shared_->mutex);
    auto& blocks = shared_->free_blocks[size];
    if (!blocks.empty()) {
      block = std::move(blocks.back());
      blocks.pop_back();
    }
  }
  if (!block) block = allocate_host(size);
  std::byte* pointer = block.get();
  return {pointer, [shared = shared_, block = std::move(block), size](void*) mutable {
            const std::lock_guard lock(shared->mutex);
            shared->free_blocks[size].push_back(std::move(block));
          }};
}

}  // namespace adder
