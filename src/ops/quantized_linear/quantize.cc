#include <algorithm>
#include <cmath>
#include <string>
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

// The codes of a block, as QuantizedPanel::set_block takes them.
struct Codes {
  std::byte bytes[kQuantBlock];
};

Codes codes_of(const FittedBlock& fitted, bool is_int4) {
  Codes out{};
  for (std::int64_t i = 0; i < (is_int4 ? kQuantBlock / 2 : kQuantBlock); ++i) {
    if (is_int4) {
      const int low = fitted.values[i] + QuantizedPanel::kInt4Zero;
      const int high = fitted.values[kQuantBlock / 2 + i] + QuantizedPanel::kInt4Zero;
      out.bytes[i] = static_cast<std::byte>(low | high << 4);
    } else {
      out.bytes[i] = static_cast<std::byte>(fitted.values[i] + QuantizedPanel::kInt8Zero);
    }
  }
  return out;
}

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
      bool fits = true;
      for (float w : block) fits &= std::abs(w) <= largest;
      if (!fits) refuse(block, row);
      const FittedBlock fitted =
          is_int4
              ? fit_int4(block, importance.empty() ? importance : importance.subspan(first, count))
              : fit_int8(block);
      layout.set_block(panel, begin / kQuantBlock, lane, codes_of(fitted, is_int4).bytes,
                       fitted.scale);
    }
  }

  void refuse(std::span<const float> block, std::int64_t row) const {
    const float largest = format == WeightFormat::int4 ? kLargestInt4 : kLargestInt8;
    for (float w : block) {
      check(std::abs(w) <= largest, "{} has the value {} in row {}, expected at most {} in {}",
            name, w, row, largest, name_of(format));
    }
  }
};

// A matrix in memory, which stays there.
class NamedView final : public MatrixRows {
 public:
  NamedView(const ConstTensorView& view, std::string_view name) : view_(view), name_(name) {}
  const std::string& name() const override { return name_; }
  std::int64_t rows() const override { return view_.dim(0); }
  std::int64_t columns() const override { return view_.dim(1); }
  ConstTensorView view() const override { return view_; }
  void read(std::int64_t first, std::int64_t count, std::span<float> out) const override {
    visit_float(view_.dtype, [&]<typename T>(TypeTag<T>) {
      float* to = out.data();
      for (std::int64_t row = first; row < first + count; ++row) {
        const T* from = view_.as<T>() + row * view_.stride(0);
        to = std::transform(from, from + columns(), to, [](T v) { return to_float(v); });
      }
    });
  }

 private:
  ConstTensorView view_;
  std::string name_;
};

}  // namespace

QuantizedMatrix quantize_linear(const ConstTensorView& source, WeightFormat format,
                                std::span<const float> importance, std::string_view name,
                                ThreadPool& pool) {
  constexpr auto kOp = "quantize_linear";
  check_shape(kOp, "source", source, {kAny, kAny});
  check_dtype(kOp, "source", source, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "source", source);
  return quantize_linear(NamedView(source, name), format, importance, pool);
}

QuantizedMatrix quantize_linear(const MatrixRows& source, WeightFormat format,
                                std::span<const float> importance, ThreadPool& pool) {
  const auto bytes =
      static_cast<std::size_t>(QuantizedMatrix::bytes(format, source.rows(), source.columns()));
  std::shared_ptr<std::byte> storage = allocate_host(bytes);
  QuantizedMatrix weight(format, source.rows(), source.columns(), storage);
  quantize_panels(source, format, importance, 0, weight.panels(), storage.get(), pool);
  return weight;
}

void quantize_panels(const MatrixRows& source, WeightFormat format,
                     std::span<const float> importance, std::int64_t first, std::int64_t count,
                     std::byte* to, ThreadPool& pool) {
  const QuantizedMatrix weight(format, source.rows(), source.columns(), nullptr);
  check(first >= 0 && count >= 0 && count <= weight.panels() - first,
        "quantize_linear: panels {} to {} were asked for, expected some of {}", first,
        first + count, weight.panels());
  const std::int64_t in_features = source.columns();
  check(importance.empty() || static_cast<std::int64_t>(importance.size()) == in_features,
        "quantize_linear: importance has {} values, expected in_features {}", importance.size(),
        in_features);
  check(std::all_of(importance.begin(), importance.end(),
                    [](float p) { return p >= 0 && std::isfinite(p); }),
        "quantize_linear: an importance is negative or not finite, expected at least 0");
  const Quantizer quantizer{format, in_features, importance, source.name()};
  const QuantizedPanel layout(format, weight.blocks());
  const std::int64_t panel_elements = weight.blocks() * kQuantBlock * kQuantPanelRows;
  const bool as_stored = source.has_panels(format);
  pool.parallel_for(
      count, panel_grain(1, panel_elements), [&](std::int64_t begin, std::int64_t end) {
        const auto row_size = static_cast<std::size_t>(in_features);
        std::vector<float> rows(as_stored ? 0 : kQuantPanelRows * row_size);
        ConsumedRows consumed(source, (first + begin) * kQuantPanelRows);
        for (std::int64_t i = begin; i < end; ++i) {
          std::byte* panel = to + i * weight.panel_bytes();
          const std::int64_t row = (first + i) * kQuantPanelRows;
          const std::int64_t nrows = std::min(kQuantPanelRows, source.rows() - row);
          if (as_stored) {
            source.write_panel(format, first + i, panel);
          } else {
            const auto values = std::span(rows).first(static_cast<std::size_t>(nrows) * row_size);
            source.read(row, nrows, values);
            layout.clear(panel);
            for (std::int64_t lane = 0; lane < nrows; ++lane) {
              quantizer.put(values.subspan(static_cast<std::size_t>(lane) * row_size, row_size),
                            row + lane, lane, layout, panel);
            }
          }
          consumed.up_to(row + nrows);
        }
      });
}

}  // namespace adder::cpu
