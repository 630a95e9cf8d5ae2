#pragma once

// What a restricted pickle can hold, and the meaning of the few callables it may name.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/unpickle.h"

namespace adder::pickle {

// Values live in one array and refer to each other by index: nothing recurses, cycles are harmless,
// and nothing has to be freed in an order.
using Ref = std::uint32_t;

struct None {};
struct Tuple {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;
};
enum class Callable { rebuild_tensor, rebuild_parameter, ordered_dict };
struct StorageClass {
  DType dtype;
};
struct Tensor {
  Ref storage;
  std::int64_t offset;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};
using Value = std::variant<None, bool, std::int64_t, std::string, Tuple, Dict, Callable,
                           StorageClass, PickledStorage, Tensor>;
using Values = std::vector<Value>;

/// What `module.name` stands for: a Callable or a StorageClass. Anything but the closed list in
/// unpickle.h is an error that names it.
Value resolve_global(std::string_view module, std::string_view name, std::string_view source);

/// The storage that the tuple `id` describes.
Value resolve_persistent_id(const Values& values, Ref id, std::string_view source);

/// The result of `callable(*arguments)`.
Value call(const Values& values, Ref callable, Ref arguments, std::string_view source);

}  // namespace adder::pickle
