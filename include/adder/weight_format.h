#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "adder/dtype.h"

namespace adder {

/// What weight matrices are held as: floating-point numbers, or integers of 8 or 4 bits of which
/// each 32 in a row share a scale.
enum class WeightFormat : std::uint8_t { f32, bf16, f16, int8, int4 };

/// "f32", "bf16", "f16", "int8", "int4": the names that the command line and error messages use.
constexpr std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::f16:
      return "f16";
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::int4:
      return "int4";
  }
  return "unknown";
}

constexpr bool is_quantized(WeightFormat format) {
  return format == WeightFormat::int8 || format == WeightFormat::int4;
}

/// What a floating-point tensor is stored as; none for other dtypes, f64 among them.
constexpr std::optional<WeightFormat> format_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return WeightFormat::f32;
    case DType::bf16:
      return WeightFormat::bf16;
    case DType::f16:
      return WeightFormat::f16;
    default:
      return std::nullopt;
  }
}

/// Bits of a weight, its part of a scale included.
constexpr double bits_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return 32;
    case WeightFormat::int8:
      return 8.5;
    case WeightFormat::int4:
      return 4.5;
    default:
      return 16;
  }
}

/// The dtype of a floating-point format.
constexpr std::optional<DType> dtype_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return DType::f32;
    case WeightFormat::bf16:
      return DType::bf16;
    case WeightFormat::f16:
      return DType::f16;
    default:
      return std::nullopt;
  }
}

}  // namespace adder
