#pragma once

// Output buffers that show writes where none belong: filled with a poison pattern (so that an
// element that was never written is seen), between canaries, and at an address that is aligned to
// no more than the element type.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "adder/tensor_view.h"

namespace adder::test {

template <typename T>
class Guarded {
 public:
  explicit Guarded(std::int64_t size)
      : size_(static_cast<std::size_t>(size)), memory_((size_ + 2 * kMargin + 1) * sizeof(T)) {
    std::memset(memory_.data(), kPoison, memory_.size());
  }

  T* data() { return reinterpret_cast<T*>(memory_.data()) + kMargin + 1; }
  std::span<T> span() { return {data(), size_}; }
  TensorView view(std::initializer_list<std::int64_t> dims) { return TensorView::of(data(), dims); }
  void fill(std::span<const T> values) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size_bytes());
  }

  /// The canaries on both sides are untouched.
  ::testing::AssertionResult intact() const {
    const auto margin_bytes = (kMargin + 1) * sizeof(T);
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool outside = i < margin_bytes || i >= margin_bytes + size_ * sizeof(T);
      if (outside && memory_[i] != kPoison) {
        return ::testing::AssertionFailure() << "byte " << i << " around a buffer of "
                                             << size_ * sizeof(T) << " bytes was overwritten";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static constexpr std::size_t kMargin = 64;
  // Four of these bytes are a quiet NaN as a float, two are one as a bf16 or f16.
  static constexpr unsigned char kPoison = 0xff;
  std::size_t size_;
  std::vector<unsigned char> memory_;
};

}  // namespace adder::test
