#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "adder/dtype.h"

namespace adder {

/// The names that safetensors files use for the element types.
inline constexpr std::array<std::pair<std::string_view, DType>, 10> kSafetensorsDTypes = {{
    {"F64", DType::f64},
    {"F32", DType::f32},
    {"F16", DType::f16},
    {"BF16", DType::bf16},
    {"I64", DType::i64},
    {"I32", DType::i32},
    {"I16", DType::i16},
    {"I8", DType::i8},
    {"U8", DType::u8},
    {"BOOL", DType::boolean},
}};

}  // namespace adder
