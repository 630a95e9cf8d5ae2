#pragma once

// Owning host tensors: a view plus shared storage, 64-byte aligned.

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>

#include "adder/tensor_view.h"

namespace adder {

inline constexpr std::size_t kAlignment = 64;

/// `bytes` of aligned host memory that is freed with its last owner. Zero bytes are allowed.
std::shared_ptr<std::byte> allocate_host(std::size_t bytes);

/// A tensor and its storage. Copies share the storage; `clone` makes a new one.
struct Tensor {
  TensorView view;
  std::shared_ptr<void> storage;

  Tensor() = default;
  Tensor(TensorView v, std::shared_ptr<void> s) : view(v), storage(std::move(s)) {}

  bool defined() const { return view.defined(); }
  /// Uninitialized.
  static Tensor empty(DType dtype, std::span<const std::int64_t> dims);
  static Tensor empty(DType dtype, std::initializer_list<std::int64_t> dims) {
    return empty(dtype, std::span(dims.begin(), dims.size()));
  }
  static Tensor zeros(DType dtype, std::initializer_list<std::int64_t> dims);

  template <typename T>
  T* as() const {
    return view.as<T>();
  }
  template <typename T>
  std::span<T> span() const {
    return {view.as<T>(), static_cast<std::size_t>(view.numel())};
  }
};

/// A contiguous copy converted to another floating dtype (or the same).
Tensor convert(const ConstTensorView& source, DType dtype);

}  // namespace adder
