#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace adder::text {

/// A hash table of 64-bit keys and values with linear probing, built once and read often: one
/// cache line per lookup, where std::unordered_map takes two or three. The key ~0 is reserved.
class FlatMap {
 public:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  void reserve(std::size_t n) {
    if (n * 2 > slots_.size()) rehash(std::bit_ceil(n * 2 + 8));
  }

  /// Adds the key, or replaces its value.
  void set(std::uint64_t key, std::uint64_t value) {
    reserve(size_ + 1);
    Slot& slot = slots_[position(key)];
    if (slot.key == kNone) ++size_;
    slot = {key, value};
  }

  /// The value, or kNone.
  std::uint64_t find(std::uint64_t key) const {
    if (slots_.empty()) return kNone;
    const Slot& slot = slots_[position(key)];
    return slot.key == key ? slot.value : kNone;
  }

  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t key = kNone;
    std::uint64_t value = kNone;
  };

  /// The slot that holds the key, or the empty one where it belongs. At most half are in use.
  std::size_t position(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::uint64_t hash = key * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    std::size_t i = hash & mask;
    while (slots_[i].key != kNone && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }

  void rehash(std::size_t capacity) {
    std::vector<Slot> old(capacity);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kNone) slots_[position(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace adder::text
