#include "checkpoint/pickle_values.h"

#include <array>
#include <optional>

#include "adder/tensor_view.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder::pickle {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 10> kStorageClasses = {{
    {"DoubleStorage", DType::f64},
    {"FloatStorage", DType::f32},
    {"HalfStorage", DType::f16},
    {"BFloat16Storage", DType::bf16},
    {"LongStorage", DType::i64},
    {"IntStorage", DType::i32},
    {"ShortStorage", DType::i16},
    {"CharStorage", DType::i8},
    {"ByteStorage", DType::u8},
    {"BoolStorage", DType::boolean},
}};

constexpr std::size_t kMaxKeyBytes = 64;  // keys are decimal numbers

/// The tuple's items as `T`s that are not negative, at most kMaxRank of them.
std::vector<std::int64_t> extents(const Values& values, Ref ref, std::string_view what,
                                  std::string_view source) {
  const auto* tuple = std::get_if<Tuple>(&values[ref]);
  check(tuple != nullptr, "{}: the pickle gives a tensor a {} that is no tuple", source, what);
  check(tuple->items.size() <= std::size_t{kMaxRank},
        "{}: the pickle has a tensor of {} dimensions, expected at most {}", source,
        tuple->items.size(), kMaxRank);
  std::vector<std::int64_t> out;
  for (Ref item : tuple->items) {
    const auto* value = std::get_if<std::int64_t>(&values[item]);
    check(value != nullptr && *value >= 0,
          "{}: the pickle gives a tensor a {} element of {}, expected an integer of at least 0",
          source, what, value != nullptr ? std::to_string(*value) : "another type");
    out.push_back(*value);
  }
  return out;
}

/// _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks
/// [, metadata]); metadata marks lazily conjugated or negated tensors.
Value rebuild_tensor(const Values& values, const Tuple& arguments, std::string_view source) {
  const auto& items = arguments.items;
  check(items.size() == 6 || items.size() == 7,
        "{}: the pickle calls torch._utils._rebuild_tensor_v2 with {} arguments, expected 6 or 7",
        source, items.size());
  check(std::holds_alternative<PickledStorage>(values[items[0]]),
        "{}: the pickle calls torch._utils._rebuild_tensor_v2 without a storage", source);
  const auto* offset = std::get_if<std::int64_t>(&values[items[1]]);
  check(offset != nullptr && *offset >= 0,
        "{}: the pickle gives a tensor a storage offset of {}, expected an integer of at least 0",
        source, offset != nullptr ? std::to_string(*offset) : "another type");
  Tensor tensor{.storage = items[0],
                .offset = *offset,
                .shape = extents(values, items[2], "size", source),
                .strides = extents(values, items[3], "stride", source)};
  check(tensor.shape.size() == tensor.strides.size(),
        "{}: the pickle has a tensor of {} dimensions with {} strides", source, tensor.shape.size(),
        tensor.strides.size());
  if (items.size() == 7) {
    const auto* metadata = std::get_if<Dict>(&values[items[6]]);
    check((metadata != nullptr && metadata->items.empty()) ||
              std::holds_alternative<None>(values[items[6]]),
          "{}: the pickle has a tensor with metadata, expected a plain one", source);
  }
  return tensor;
}

}  // namespace

Value resolve_global(std::string_view module, std::string_view name, std::string_view source) {
  if (module == "torch._utils" && name == "_rebuild_tensor_v2") return Callable::rebuild_tensor;
  if (module == "torch._utils" && name == "_rebuild_parameter") return Callable::rebuild_parameter;
  if (module == "collections" && name == "OrderedDict") return Callable::ordered_dict;
  if (module == "torch") {
    for (const auto& [known, dtype] : kStorageClasses) {
      if (name == known) return StorageClass{dtype};
    }
  }
  fail(
      "{}: the pickle refers to {}, expected only what a state dict of plain tensors needs; "
      "nothing was executed",
      source, in_quotes(std::string(module) + "." + std::string(name)));
}

Value resolve_persistent_id(const Values& values, Ref id, std::string_view source) {
  const auto* tuple = std::get_if<Tuple>(&values[id]);
  check(tuple != nullptr && tuple->items.size() == 5,
        "{}: the pickle has a persistent id that is not a tuple of 5", source);
  const auto& items = tuple->items;
  const auto* kind = std::get_if<std::string>(&values[items[0]]);
  const auto* type = std::get_if<StorageClass>(&values[items[1]]);
  const auto* key = std::get_if<std::string>(&values[items[2]]);
  const auto* numel = std::get_if<std::int64_t>(&values[items[4]]);
  check(kind != nullptr && *kind == "storage" && type != nullptr && key != nullptr &&
            numel != nullptr,
        "{}: the pickle has a persistent id other than ('storage', class, key, location, numel)",
        source);
  check(key->size() <= kMaxKeyBytes, "{}: the pickle has a storage key of {} bytes, expected {}",
        source, key->size(), "at most 64");
  check(*numel >= 0, "{}: the pickle gives storage {} {} elements, expected at least 0", source,
        in_quotes(*key), *numel);
  return PickledStorage{.dtype = type->dtype, .key = *key, .numel = *numel};
}

Value call(const Values& values, Ref callable, Ref arguments, std::string_view source) {
  const auto* function = std::get_if<Callable>(&values[callable]);
  check(function != nullptr, "{}: the pickle calls a value that is not a function", source);
  const auto* tuple = std::get_if<Tuple>(&values[arguments]);
  check(tuple != nullptr, "{}: the pickle calls a function with arguments that are no tuple",
        source);
  switch (*function) {
    case Callable::rebuild_tensor:
      return rebuild_tensor(values, *tuple, source);
    case Callable::rebuild_parameter: {  // (data, requires_grad, backward_hooks)
      const auto* data =
          tuple->items.size() == 3 ? std::get_if<Tensor>(&values[tuple->items[0]]) : nullptr;
      check(data != nullptr,
            "{}: the pickle calls torch._utils._rebuild_parameter without a tensor and two more "
            "arguments",
            source);
      return *data;
    }
    case Callable::ordered_dict:
      check(tuple->items.empty(),
            "{}: the pickle calls collections.OrderedDict with {} arguments, expected none", source,
            tuple->items.size());
      return Dict{};
  }
  fail("{}: the pickle calls an unknown function", source);
}

}  // namespace adder::pickle
