#include <algorithm>
#include <cstring>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "core/tensor.h"
#include "ops/linear/linear.h"
#include "ops/linear/shares.h"

namespace adder::cpu {
namespace {

// Inputs that are stored side by side for one output.
constexpr std::int64_t inputs_per_lane(DType dtype) { return dtype == DType::bf16 ? 2 : 1; }

// Where in its panel the weight of output `lane` (below 16) for `input` is stored.
template <typename T>
constexpr std::int64_t offset_in_panel(std::int64_t input, std::int64_t lane) {
  constexpr std::int64_t kInputs = inputs_per_lane(DTypeOf<T>::value);
  return input / kInputs * (kInputs * kPanelOutputs) + lane * kInputs + input % kInputs;
}

template <typename From, typename To>
To convert_weight(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else {
    return from_float<To>(to_float(value));
  }
}

// One panel: `rows` source rows, at most 16, `row_stride` apart. Goes over blocks of inputs whose
// destination stays in L1, so that source rows are read along and the panel is written once.
template <typename From, typename To>
void pack_panel(const From* source, std::int64_t row_stride, std::int64_t rows,
                std::int64_t in_features, To* panel, std::int64_t panel_elements) {
  constexpr std::int64_t kBlock = 128;
  if (rows < kPanelOutputs || panel_elements != in_features * kPanelOutputs) {
    std::memset(static_cast<void*>(panel), 0,
                static_cast<std::size_t>(panel_elements) * sizeof(To));
  }
  for (std::int64_t begin = 0; begin < in_features; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, in_features);
    for (std::int64_t lane = 0; lane < rows; ++lane) {
      const From* row = source + lane * row_stride;
      for (std::int64_t i = begin; i < end; ++i) {
        panel[offset_in_panel<To>(i, lane)] = convert_weight<From, To>(row[i]);
      }
    }
  }
}

}  // namespace

std::int64_t PackedLinear::panels() const {
  return round_up(out_features_, kPanelOutputs) / kPanelOutputs;
}

std::int64_t PackedLinear::panel_elements() const {
  return round_up(in_features_, inputs_per_lane(dtype_)) * kPanelOutputs;
}

std::int64_t PackedLinear::bytes() const {
  return panels() * panel_elements() * static_cast<std::int64_t>(size_of(dtype_));
}

void PackedLinear::unpack_row(std::int64_t row, std::span<float> out) const {
  check(row >= 0 && row < out_features_, "linear: row {} of a weight of {} rows was asked for", row,
        out_features_);
  check(static_cast<std::int64_t>(out.size()) == in_features_,
        "linear: a row was to be unpacked into {} values, expected in_features {}", out.size(),
        in_features_);
  visit_float(dtype_, [&]<typename T>(TypeTag<T>) {
    const T* panel =
        reinterpret_cast<const T*>(storage_.get()) + row / kPanelOutputs * panel_elements();
    for (std::int64_t i = 0; i < in_features_; ++i) {
      out[static_cast<std::size_t>(i)] =
          to_float(panel[offset_in_panel<T>(i, row % kPanelOutputs)]);
    }
  });
}

PackedLinear pack_linear(const ConstTensorView& source, DType storage_dtype, ThreadPool& pool) {
  constexpr auto kOp = "pack_linear";
  check_shape(kOp, "source", source, {kAny, kAny});
  check_dtype(kOp, "source", source, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "source", source);
  check(storage_dtype == DType::f32 || storage_dtype == DType::bf16 || storage_dtype == DType::f16,
        "pack_linear: storage dtype is {}, expected f32, bf16 or f16", name_of(storage_dtype));
  PackedLinear packed;
  packed.out_features_ = source.dim(0);
  packed.in_features_ = source.dim(1);
  packed.dtype_ = storage_dtype;
  packed.storage_ = allocate_host(static_cast<std::size_t>(packed.bytes()));
  const std::int64_t panel_elements = packed.panel_elements();
  visit_float(source.dtype, [&]<typename From>(TypeTag<From>) {
    visit_float(storage_dtype, [&]<typename To>(TypeTag<To>) {
      const From* from = source.as<From>();
      To* to = reinterpret_cast<To*>(packed.storage_.get());
      pool.parallel_for(packed.panels(), panel_grain(1, panel_elements),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t panel = begin; panel < end; ++panel) {
                            const std::int64_t row = panel * kPanelOutputs;
                            pack_panel(from + row * source.stride(0), source.stride(0),
                                       std::min(kPanelOutputs, packed.out_features_ - row),
                                       packed.in_features_, to + panel * panel_elements,
                                       panel_elements);
                          }
                        });
    });
  });
  return packed;
}

}  // namespace adder::cpu
