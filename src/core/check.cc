#include "core/check.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace adder {

std::string shape_string(std::span<const std::int64_t> dims) {
  return fmt::format("({})", fmt::join(dims, ", "));
}

namespace {

std::string expected_string(std::initializer_list<std::int64_t> expected) {
  std::string out = "(";
  for (std::int64_t extent : expected) {
    if (out.size() > 1) out += ", ";
    out += extent == kAny ? "any" : std::to_string(extent);
  }
  return out + ")";
}

}  // namespace

void check_shape(std::string_view op, std::string_view argument, const ConstTensorView& view,
                 std::initializer_list<std::int64_t> expected, const Device& where) {
  check(view.defined(), "{}: {} is missing, expected a tensor of shape {}", op, argument,
        expected_string(expected));
  bool same = view.rank == static_cast<int>(expected.size());
  int i = 0;
  for (std::int64_t extent : expected) {
    same = same && (extent == kAny ? view.dim(i) >= 0 : extent == view.dim(i));
    ++i;
  }
  check(same, "{}: {} has shape {}, expected {}", op, argument, shape_string(view.dims()),
        expected_string(expected));
  check(view.data != nullptr || view.numel() == 0, "{}: {} of shape {} has a null data pointer", op,
        argument, shape_string(view.dims()));
  check(view.device == where, "{}: {} is in {}, expected it in {}", op, argument,
        place_string(view.device), place_string(where));
}

void check_host(std::string_view op, std::string_view argument, const ConstTensorView& view) {
  check(view.device == Device{}, "{}: {} is in {}, expected it in {}", op, argument,
        place_string(view.device), place_string({}));
}

std::string place_string(const Device& where) {
  return where.type == DeviceType::cpu ? "host memory"
                                       : fmt::format("memory of CUDA device {}", where.index);
}

void check_dtype(std::string_view op, std::string_view argument, const ConstTensorView& view,
                 std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), view.dtype) != allowed.end()) return;
  std::string names;
  for (DType dtype : allowed) {
    if (!names.empty()) names += " or ";
    names += name_of(dtype);
  }
  fail("{}: {} has dtype {}, expected {}", op, argument, name_of(view.dtype), names);
}

void check_float(std::string_view op, std::string_view argument, const ConstTensorView& view) {
  if (view.device.type == DeviceType::cuda) {
    check_dtype(op, argument, view, {DType::f32, DType::bf16, DType::f16});
  } else {
    check_dtype(op, argument, view, {DType::f32});
  }
}

void check_state(std::string_view op, std::string_view argument, const ConstTensorView& view) {
  if (view.device.type == DeviceType::cuda) {
    check_dtype(op, argument, view, {DType::f32, DType::bf16});
  } else {
    check_dtype(op, argument, view, {DType::f32});
  }
}

void check_rows(std::string_view op, std::string_view argument, const ConstTensorView& view) {
  check(view.rank == 0 || view.dim(-1) <= 1 || view.stride(-1) == 1,
        "{}: {} has stride {} in its last dimension, expected 1", op, argument,
        view.rank > 0 ? view.stride(-1) : 0);
}

void check_contiguous(std::string_view op, std::string_view argument, const ConstTensorView& view) {
  check(view.is_contiguous(), "{}: {} of shape {} has strides {}, expected a contiguous tensor", op,
        argument, shape_string(view.dims()),
        shape_string({view.strides.data(), static_cast<std::size_t>(view.rank)}));
}

void check_cu_seqlens(std::string_view op, const ConstTensorView& cu_seqlens, std::int64_t ntokens,
                      const Device& where) {
  check_shape(op, "cu_seqlens", cu_seqlens, {kAny}, where);
  check_dtype(op, "cu_seqlens", cu_seqlens, {DType::i32});
  check_contiguous(op, "cu_seqlens", cu_seqlens);
  const std::int64_t n = cu_seqlens.dim(0);
  check(n >= 1, "{}: cu_seqlens is empty, expected nsequences + 1 offsets", op);
  check(n >= 2 || ntokens == 0,
        "{}: cu_seqlens has no sequence, expected at least one for {} tokens", op, ntokens);
  if (where.type == DeviceType::cuda) return;
  const auto* offsets = cu_seqlens.as<std::int32_t>();
  check(offsets[0] == 0, "{}: cu_seqlens starts at {}, expected 0", op, offsets[0]);
  for (std::int64_t i = 1; i < n; ++i) {
    check(offsets[i] >= offsets[i - 1], "{}: cu_seqlens decreases from {} to {} at index {}", op,
          offsets[i - 1], offsets[i], i);
  }
  check(offsets[n - 1] == ntokens, "{}: cu_seqlens ends at {}, expected the number of tokens, {}",
        op, offsets[n - 1], ntokens);
}

}  // namespace adder
