#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "adder/dtype.h"

namespace adder {

/// Where the bytes of a tensor live.
enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr int kMaxRank = 5;

/// A non-owning view of a strided tensor: what DLPack carries. Strides count elements, not bytes.
/// A default-constructed view is absent (`defined()` is false): that is how an optional argument of
/// an operation is left out. A view with a zero extent is defined and may have null data.
///
/// `TensorView` may be written through; it converts to `ConstTensorView`, which may not.
template <typename Void>
struct BasicTensorView {
  template <typename T>
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;

  Void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = -1;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  BasicTensorView() = default;

  /// A contiguous row-major view. `dims.size()` must be at most kMaxRank.
  BasicTensorView(Void* pointer, DType type, std::span<const std::int64_t> dims, Device where = {})
      : data(pointer), dtype(type), device(where), rank(static_cast<int>(dims.size())) {
    assert(dims.size() <= kMaxRank);
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      shape[i] = dims[i];
      strides[i] = stride;
      stride *= dims[i];
    }
  }
  BasicTensorView(Void* pointer, DType type, std::initializer_list<std::int64_t> dims,
                  Device where = {})
      : BasicTensorView(pointer, type, std::span(dims.begin(), dims.size()), where) {}

  /// A contiguous view of typed memory: `TensorView::of(ptr, {seqlen, d_model})`.
  template <typename T>
  static BasicTensorView of(T* pointer, std::initializer_list<std::int64_t> dims) {
    return BasicTensorView(pointer, DTypeOf<std::remove_const_t<T>>::value, dims);
  }

  /// A writable view reads as well.
  template <typename Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data),
        dtype(other.dtype),
        device(other.device),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides) {}

  bool defined() const { return rank >= 0; }

  /// Extent of dimension `i`; negative `i` counts from the end.
  std::int64_t dim(int i) const { return shape[i < 0 ? rank + i : i]; }
  /// Stride, in elements, of dimension `i`; negative `i` counts from the end.
  std::int64_t stride(int i) const { return strides[i < 0 ? rank + i : i]; }

  std::span<const std::int64_t> dims() const {
    return {shape.data(), static_cast<std::size_t>(rank < 0 ? 0 : rank)};
  }

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t d : dims()) n *= d;
    return n;
  }

  std::int64_t size_bytes() const { return numel() * static_cast<std::int64_t>(size_of(dtype)); }

  /// Row-major with no gaps (extents of one may have any stride).
  bool is_contiguous() const {
    std::int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }

  /// The elements as `T`; the dtype must match.
  template <typename T>
  Element<T>* as() const {
    assert(DTypeOf<std::remove_const_t<T>>::value == dtype);
    return static_cast<Element<T>*>(data);
  }

  /// The view of `[begin, begin + count)` along dimension `axis`.
  BasicTensorView narrow(int axis, std::int64_t begin, std::int64_t count) const {
    assert(axis < rank && begin >= 0 && count >= 0 && begin + count <= shape[axis]);
    BasicTensorView out = *this;
    using Byte = Element<unsigned char>;
    const std::int64_t offset_bytes =
        begin * strides[axis] * static_cast<std::int64_t>(size_of(dtype));
    if (data != nullptr) out.data = static_cast<Byte*>(data) + offset_bytes;
    out.shape[axis] = count;
    return out;
  }

  /// The view at index `i` of dimension 0, with that dimension dropped.
  BasicTensorView operator[](std::int64_t i) const {
    BasicTensorView out = narrow(0, i, 1);
    for (int d = 1; d < rank; ++d) {
      out.shape[d - 1] = out.shape[d];
      out.strides[d - 1] = out.strides[d];
    }
    out.rank = rank - 1;
    return out;
  }

  /// The same elements under another shape. Only for contiguous views with the same element count.
  BasicTensorView reshape(std::initializer_list<std::int64_t> dims_new) const {
    assert(is_contiguous());
    BasicTensorView out(data, dtype, dims_new, device);
    assert(out.numel() == numel());
    return out;
  }

  /// Splits the last dimension, whose elements are adjacent, into (`rows`, `dim(-1) / rows`).
  BasicTensorView split_last(std::int64_t rows) const {
    assert(rank >= 1 && rank < kMaxRank && stride(-1) == 1 && dim(-1) % rows == 0);
    BasicTensorView out = *this;
    const std::int64_t columns = dim(-1) / rows;
    out.rank = rank + 1;
    out.shape[rank - 1] = rows;
    out.strides[rank - 1] = columns;
    out.shape[rank] = columns;
    out.strides[rank] = 1;
    return out;
  }

  /// The same view with a leading dimension of one.
  BasicTensorView unsqueeze0() const {
    assert(rank < kMaxRank);
    BasicTensorView out = *this;
    out.rank = rank + 1;
    for (int d = rank; d > 0; --d) {
      out.shape[d] = shape[d - 1];
      out.strides[d] = strides[d - 1];
    }
    out.shape[0] = 1;
    out.strides[0] = rank > 0 ? shape[0] * strides[0] : 1;
    return out;
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

}  // namespace adder
