#include "bench/device_data.h"

#include <cmath>

#include "bench/device_difference.h"
#include "bench/device_random.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "cuda/device.h"
#include "cuda/memory.h"

namespace adder::bench {
namespace {

Tensor random_tensor(DType dtype, std::initializer_list<std::int64_t> dims,
                     const Distribution& distribution) {
  Tensor out = cuda::empty(dtype, std::span(dims.begin(), dims.size()));
  visit_float(dtype, [&]<typename T>(TypeTag<T>) {
    fill_random(out.as<T>(), out.view.numel(), distribution, nullptr);
  });
  cuda::synchronize(nullptr);
  return out;
}

}  // namespace

Tensor device_normals(DType dtype, std::initializer_list<std::int64_t> dims, std::uint64_t seed) {
  return random_tensor(dtype, dims, {.normal = true, .seed = seed});
}

Tensor device_uniforms(DType dtype, std::initializer_list<std::int64_t> dims, double low,
                       double high, std::uint64_t seed) {
  return random_tensor(dtype, dims,
                       {.normal = false,
                        .low = static_cast<float>(low),
                        .high = static_cast<float>(high),
                        .seed = seed});
}

Tensor device_poison(DType dtype, std::initializer_list<std::int64_t> dims) {
  constexpr unsigned char kNaN = 0xff;
  Tensor out = cuda::empty(dtype, std::span(dims.begin(), dims.size()));
  cuda::fill_bytes(out.view.data, kNaN, static_cast<std::size_t>(out.view.size_bytes()), nullptr);
  cuda::synchronize(nullptr);
  return out;
}

double relative_difference(const ConstTensorView& got, const ConstTensorView& expected) {
  const bool alike = got.is_contiguous() && expected.is_contiguous() && got.rank == expected.rank &&
                     got.shape == expected.shape && got.dtype == expected.dtype;
  check(alike, "relative_difference: tensors of shapes {} and {}, expected contiguous ones alike",
        shape_string(got.dims()), shape_string(expected.dims()));
  std::vector<double> sums(2 * kDifferenceBlocks);
  const auto memory = cuda::allocate(sums.size() * sizeof(double));
  visit_float(got.dtype, [&]<typename T>(TypeTag<T>) {
    sum_squares(got.as<T>(), expected.as<T>(), got.numel(), reinterpret_cast<double*>(memory.get()),
                nullptr);
  });
  cuda::copy_to_host(sums.data(), memory.get(), sums.size() * sizeof(double), nullptr);
  double errors = 0;
  double squares = 0;
  for (std::size_t i = 0; i < sums.size(); i += 2) {
    errors += sums[i];
    squares += sums[i + 1];
  }
  return errors == 0 ? 0 : std::sqrt(errors / squares);
}

std::vector<float> read_rows(const ConstTensorView& view, std::int64_t begin, std::int64_t count) {
  check(view.rank == 2 && begin >= 0 && count >= 1 && begin + count <= view.dim(0),
        "read_rows: rows {} to {} of a tensor of shape {}", begin, begin + count,
        shape_string(view.dims()));
  const std::int64_t ncolumns = view.dim(1);
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(count * ncolumns));
  visit_float(view.dtype, [&]<typename T>(TypeTag<T>) {
    // From the first to the last element of the rows, gaps included.
    std::vector<T> memory(static_cast<std::size_t>((count - 1) * view.stride(0) + ncolumns));
    cuda::copy_to_host(memory.data(), view.as<T>() + begin * view.stride(0),
                       memory.size() * sizeof(T), nullptr);
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t column = 0; column < ncolumns; ++column) {
        out.push_back(to_float(memory[static_cast<std::size_t>(row * view.stride(0) + column)]));
      }
    }
  });
  return out;
}

}  // namespace adder::bench
