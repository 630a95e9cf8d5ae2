#pragma once

#include <utility>

#include "adder/dtype.h"
#include "core/check.h"

namespace adder {

/// Carries a type to a generic lambda: `visit_float(dtype, [&]<typename T>(TypeTag<T>) {...})`.
template <typename T>
struct TypeTag {
  using type = T;
};

/// Calls `visitor(TypeTag<T>{})` with T one of float, bf16, f16. Entries check dtypes first, so
/// another dtype here is a defect of the caller.
template <typename Visitor>
decltype(auto) visit_float(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::f32:
      return visitor(TypeTag<float>{});
    case DType::bf16:
      return visitor(TypeTag<bf16>{});
    case DType::f16:
      return visitor(TypeTag<f16>{});
    default:
      fail("dtype {} has no kernel", name_of(dtype));
  }
}

}  // namespace adder
