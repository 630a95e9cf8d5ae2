#pragma once

// Argument checks of public entries: each throws one adder::Error that names the operation, the
// argument, what was got and what was expected. Below a public entry there are only asserts.

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "adder/error.h"
#include "adder/tensor_view.h"

namespace adder {

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw Error(fmt::format(format, std::forward<Args>(args)...));
  }
}

/// "(2, 128, 64)".
std::string shape_string(std::span<const std::int64_t> dims);

/// Stands for "any extent" in the expected shapes below.
inline constexpr std::int64_t kAny = -1;

/// The view is there, in memory of `where`, has data unless it is empty, and has exactly this
/// shape.
void check_shape(std::string_view op, std::string_view argument, const ConstTensorView& view,
                 std::initializer_list<std::int64_t> expected, const Device& where = {});

/// The view is in host memory: for entries that run on the CPU.
void check_host(std::string_view op, std::string_view argument, const ConstTensorView& view);

/// The view's dtype is one of `allowed`.
void check_dtype(std::string_view op, std::string_view argument, const ConstTensorView& view,
                 std::initializer_list<DType> allowed);

/// The view's dtype is one that kernels of its device compute with: f32, on a CUDA device also bf16
/// or f16.
void check_float(std::string_view op, std::string_view argument, const ConstTensorView& view);

/// The view's dtype is one that recurrent states are held in: f32, on a CUDA device also bf16.
void check_state(std::string_view op, std::string_view argument, const ConstTensorView& view);

/// The elements of the last dimension are adjacent in memory (a row can be read as a plain array).
void check_rows(std::string_view op, std::string_view argument, const ConstTensorView& view);

/// The view is row-major without gaps.
void check_contiguous(std::string_view op, std::string_view argument, const ConstTensorView& view);

/// "host memory", "memory of CUDA device 0".
std::string place_string(const Device& where);

/// `cu_seqlens`, in memory of `where`, is (nsequences + 1) i32, starts at 0, never decreases and
/// ends at `ntokens`. On a CUDA device its values are not looked at.
void check_cu_seqlens(std::string_view op, const ConstTensorView& cu_seqlens, std::int64_t ntokens,
                      const Device& where = {});

}  // namespace adder
