#pragma once

// Data of benchmarks on a device: made there, and brought back in parts to be checked.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/tensor.h"

namespace adder::bench {

/// A contiguous tensor on the current device of f32, bf16 or f16. The work is done when they
/// return.
Tensor device_normals(DType dtype, std::initializer_list<std::int64_t> dims, std::uint64_t seed);
Tensor device_uniforms(DType dtype, std::initializer_list<std::int64_t> dims, double low,
                       double high, std::uint64_t seed);
/// NaN in every element, to show what was never written.
Tensor device_poison(DType dtype, std::initializer_list<std::int64_t> dims);

/// Rows [begin, begin + count) of a (nrows, ncolumns) view on the device, as floats in host memory
/// without gaps.
std::vector<float> read_rows(const ConstTensorView& view, std::int64_t begin, std::int64_t count);

/// ‖got − expected‖ / ‖expected‖ of two contiguous tensors of the current device of the same dtype
/// and shape, computed there; NaN if an element of either is, 0 if all elements are equal.
double relative_difference(const ConstTensorView& got, const ConstTensorView& expected);

inline std::vector<double> to_doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace adder::bench
