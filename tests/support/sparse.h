#pragma once

// Address space without memory: rows that lie more than 2^31 elements apart, to show that offsets
// are 64-bit. Only the pages that are touched take memory.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace adder::test {

/// `size` elements of type T, all zero, of which only a few may be touched. `ok()` is false if the
/// system refuses that much address space (then a test skips).
template <typename T>
class Sparse {
 public:
  explicit Sparse(std::int64_t size)
      : bytes_(static_cast<std::size_t>(size) * sizeof(T)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Sparse() {
    if (ok()) munmap(memory_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;

  bool ok() const { return memory_ != MAP_FAILED; }
  T* data() const { return static_cast<T*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

/// More elements than a 32-bit offset can count.
inline constexpr std::int64_t kBeyond32Bits = (std::int64_t{1} << 31) + 64;

}  // namespace adder::test
