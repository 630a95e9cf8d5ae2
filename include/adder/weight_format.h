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
