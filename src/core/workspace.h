#pragma once

// Cuts the workspace that a caller passes to an operation into aligned arrays. The same code, run
// over no memory at all, says how many bytes are needed, so the two cannot disagree.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/check.h"
#include "core/tensor.h"

namespace adder {

class WorkspaceCutter {
 public:
  /// Measures: every array is null.
  WorkspaceCutter() = default;
  /// Cuts `memory`, which may have any alignment.
  explicit WorkspaceCutter(std::span<std::byte> memory)
      : base_(reinterpret_cast<std::byte*>(
            (reinterpret_cast<std::uintptr_t>(memory.data()) + kAlignment - 1) / kAlignment *
            kAlignment)) {}

  /// `n` uninitialized elements, aligned to 64 bytes.
  template <typename T>
  T* take(std::int64_t n) {
    T* out = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<std::size_t>(n) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return out;
  }

  /// What the caller must bring, with room for aligning its start.
  std::size_t bytes() const { return used_ + kAlignment; }

 private:
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
};

inline void check_nthreads(std::string_view op, int nthreads) {
  check(nthreads >= 1, "{}: nthreads is {}, expected at least 1", op, nthreads);
}

inline void check_workspace(std::string_view op, std::span<const std::byte> workspace,
                            std::size_t needed) {
  check(workspace.size() >= needed && workspace.data() != nullptr,
        "{}: workspace has {} bytes, expected at least {}", op, workspace.size(), needed);
}

}  // namespace adder
