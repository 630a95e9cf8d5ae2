#include "core/tensor.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/check.h"
#include "core/dispatch.h"
#include "core/half.h"

namespace adder {

std::shared_ptr<std::byte> allocate_host(std::size_t bytes) {
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + kAlignment - 1) & ~(kAlignment - 1);
  auto* pointer = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (pointer == nullptr) fail("out of memory: {} bytes could not be allocated", bytes);
  return {pointer, [](std::byte* p) { std::free(p); }};
}

Tensor Tensor::empty(DType dtype, std::span<const std::int64_t> dims) {
  TensorView view(nullptr, dtype, dims);
  auto storage = allocate_host(static_cast<std::size_t>(view.size_bytes()));
  view.data = storage.get();
  return {view, std::move(storage)};
}

Tensor Tensor::zeros(DType dtype, std::initializer_list<std::int64_t> dims) {
  Tensor out = empty(dtype, dims);
  std::memset(out.view.data, 0, static_cast<std::size_t>(out.view.size_bytes()));
  return out;
}

namespace {

// Walks a strided source in row-major order.
template <typename From, typename To>
void copy_converted(const ConstTensorView& source, int axis, const From* from, To*& to) {
  if (axis == source.rank) {
    *to++ = from_float<To>(to_float(*from));
    return;
  }
  for (std::int64_t i = 0; i < source.dim(axis); ++i) {
    copy_converted(source, axis + 1, from + i * source.stride(axis), to);
  }
}

}  // namespace

Tensor convert(const ConstTensorView& source, DType dtype) {
  check(is_floating(source.dtype) && source.dtype != DType::f64,
        "convert: dtype {} is not supported", name_of(source.dtype));
  Tensor out = Tensor::empty(dtype, source.dims());
  visit_float(source.dtype, [&]<typename From>(TypeTag<From>) {
    visit_float(dtype, [&]<typename To>(TypeTag<To>) {
      To* to = out.as<To>();
      const From* from = source.as<From>();
      if (!source.is_contiguous()) return copy_converted(source, 0, from, to);
      const std::int64_t count = source.numel();
      for (std::int64_t i = 0; i < count; ++i) to[i] = from_float<To>(to_float(from[i]));
    });
  });
  return out;
}

}  // namespace adder
