#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "core/quantized_panel.h"
#include "core/tensor.h"
#include "ops/linear/shares.h"
#include "ops/quantized_linear/fit.h"
#include "ops/quantized_linear/quantized_linear.h"

namespace adder::cpu {
namespace {

// Largest weight whose scale, an eighth of it with int4, is finite in f16.
constexpr float kLargestInt8 = 65504.0F * 127;
constexpr float kLargestInt4 = 65504.0F * 6;

struct Quantizer {
  WeightFormat format;
  std::int64_t in_features;
  std::span<const float> importance;
  std::string_view name;

  // Row `row` of the weight to output `lane` of a cleared panel.
  void put(std::span<const float> weights, std::int64_t row, std::int64_t lane,
           const QuantizedPanel& layout, std::byte* panel) const {
    const bool is_int4 = format == WeightFormat::int4;
    const float largest = is_int4 ? kLargestInt4 : kLargestInt8;
    for (std::int64_t begin = 0; begin < in_features; begin += kQuantBlock) {
      const auto first = static_cast<std::size_t>(begin);
      const auto count = static_cast<std::size_t>(std::min(kQuantBlock, in_features - begin));
      const auto block = weights.subspan(first, count);
      for (float w : block) {
        check(std::abs(w) <= largest, "{} has the value {} in row {}, expected at most {} in {}",
              name, w, row, largest, name_of(format));
      }
      const FittedBlock fitted =
          is_int4
              ? fit_int4(block, importance.empty() ? importance : importance.subspan(first, count))
              : fit_int8(block);
      layout.set_scale(panel, begin / kQuantBlock, lane, fitted.scale);
      for (std::size_t i = 0; i < count; ++i) {
        layout.set_value(panel, begin + static_cast<std::int64_t>(i), lane, fitted.values[i]);
      }
    }
  }
};

}  // namespace

QuantizedMatrix quantize_linear(const ConstTensorView& source, WeightFormat format,
                                std::span<const float> importance, std::string_view name,
                                ThreadPool& pool) {
  constexpr auto kOp = "quantize_linear";
  check_shape(kOp, "source", source, {kAny, kAny});
  check_dtype(kOp, "source", source, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "source", source);
  const std::int64_t out_features = source.dim(0);
  const std::int64_t in_features = source.dim(1);
  check(importance.empty() || static_cast<std::int64_t>(importance.size()) == in_features,
        "quantize_linear: importance has {} values, expected in_features {}", importance.size(),
        in_features);
  check(std::all_of(importance.begin(), importance.end(),
                    [](float p) { return p >= 0 && std::isfinite(p); }),
        "quantize_linear: an importance is negative or not finite, expected at least 0");
  const auto bytes =
      static_cast<std::size_t>(QuantizedMatrix::bytes(format, out_features, in_features));
  std::shared_ptr<std::byte> storage = allocate_host(bytes);
  QuantizedMatrix weight(format, out_features, in_features, storage);
  const Quantizer quantizer{format, in_features, importance, name};
  const QuantizedPanel layout(format, weight.blocks());
  const std::int64_t panel_elements = weight.blocks() * kQuantBlock * kQuantPanelRows;
  visit_float(source.dtype, [&]<typename T>(TypeTag<T>) {
    pool.parallel_for(weight.panels(), panel_grain(1, panel_elements),
                      [&](std::int64_t begin, std::int64_t end) {
                        std::vector<float> row(static_cast<std::size_t>(in_features));
                        for (std::int64_t panel = begin; panel < end; ++panel) {
                          std::byte* to = storage.get() + panel * weight.panel_bytes();
                          layout.clear(to);
                          const std::int64_t first = panel * kQuantPanelRows;
                          const std::int64_t rows = std::min(kQuantPanelRows, out_features - first);
                          for (std::int64_t lane = 0; lane < rows; ++lane) {
                            const T* from = source.as<T>() + (first + lane) * source.stride(0);
                            std::transform(from, from + in_features, row.begin(),
                                           [](T v) { return to_float(v); });
                            quantizer.put(row, first + lane, lane, layout, to);
                          }
                        }
                      });
  });
  return weight;
}

}  // namespace adder::cpu
