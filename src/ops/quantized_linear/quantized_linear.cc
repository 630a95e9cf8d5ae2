#include "ops/quantized_linear/quantized_linear.h"

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/half.h"
#include "ops/quantized_linear/panel.h"

namespace adder::cpu {

QuantizedLinear::QuantizedLinear(WeightFormat format, std::int64_t out_features,
                                 std::int64_t in_features, std::shared_ptr<const std::byte> storage)
    : out_features_(out_features),
      in_features_(in_features),
      format_(format),
      storage_(std::move(storage)) {
  check(is_quantized(format), "quantized_linear: format is {}, expected int8 or int4",
        name_of(format));
  check(out_features >= 0 && in_features >= 0,
        "quantized_linear: a weight of shape ({}, {}), expected extents of at least 0",
        out_features, in_features);
}

std::int64_t QuantizedLinear::bytes(WeightFormat format, std::int64_t out_features,
                                    std::int64_t in_features) {
  const QuantizedLinear weight(format, out_features, in_features, nullptr);
  return weight.panels() * weight.panel_bytes();
}

std::int64_t QuantizedLinear::blocks() const { return ceil_div(in_features_, kQuantBlock); }

std::int64_t QuantizedLinear::panels() const { return ceil_div(out_features_, kPanelOutputs); }

std::int64_t QuantizedLinear::panel_bytes() const { return Panel(format_, blocks()).bytes(); }

void QuantizedLinear::unpack_row(std::int64_t row, std::span<float> out) const {
  check(row >= 0 && row < out_features_,
        "quantized_linear: row {} of a weight of {} rows was asked for", row, out_features_);
  check(static_cast<std::int64_t>(out.size()) == in_features_,
        "quantized_linear: a row was to be unpacked into {} values, expected in_features {}",
        out.size(), in_features_);
  const Panel layout(format_, blocks());
  const std::byte* panel = data() + row / kPanelOutputs * panel_bytes();
  const std::int64_t lane = row % kPanelOutputs;
  for (std::int64_t i = 0; i < in_features_; ++i) {
    out[static_cast<std::size_t>(i)] = static_cast<float>(layout.value(panel, i, lane)) *
                                       to_float(layout.scale(panel, i / kQuantBlock, lane));
  }
}

}  // namespace adder::cpu
