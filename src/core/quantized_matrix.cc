#include "adder/quantized_matrix.h"

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/half.h"
#include "core/quantized_panel.h"

namespace adder {
namespace {

// Far beyond any model, and so small that no product of two overflows.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 30;

}  // namespace

QuantizedMatrix::QuantizedMatrix(WeightFormat format, std::int64_t rows, std::int64_t columns,
                                 std::shared_ptr<const std::byte> storage)
    : rows_(rows), columns_(columns), format_(format), storage_(std::move(storage)) {
  check(is_quantized(format), "a quantized matrix has the format {}, expected int8 or int4",
        name_of(format));
  check(rows >= 0 && columns >= 0 && rows <= kMaxExtent && columns <= kMaxExtent,
        "a quantized matrix has the shape ({}, {}), expected extents from 0 to {}", rows, columns,
        kMaxExtent);
}

std::int64_t QuantizedMatrix::bytes(WeightFormat format, std::int64_t rows, std::int64_t columns) {
  return QuantizedMatrix(format, rows, columns, nullptr).bytes();
}

std::int64_t QuantizedMatrix::blocks() const { return ceil_div(columns_, kQuantBlock); }

std::int64_t QuantizedMatrix::panels() const { return ceil_div(rows_, kQuantPanelRows); }

std::int64_t QuantizedMatrix::panel_bytes() const {
  return QuantizedPanel(format_, blocks()).bytes();
}

void QuantizedMatrix::unpack_row(std::int64_t row, std::span<float> out) const {
  check(row >= 0 && row < rows_, "row {} of a quantized matrix of {} rows was asked for", row,
        rows_);
  check(static_cast<std::int64_t>(out.size()) == columns_,
        "a row of a quantized matrix was to be unpacked into {} values, expected {}", out.size(),
        columns_);
  const QuantizedPanel layout(format_, blocks());
  const std::byte* panel = data() + row / kQuantPanelRows * panel_bytes();
  const std::int64_t lane = row % kQuantPanelRows;
  for (std::int64_t i = 0; i < columns_; ++i) {
    out[static_cast<std::size_t>(i)] = static_cast<float>(layout.value(panel, i, lane)) *
                                       to_float(layout.scale(panel, i / kQuantBlock, lane));
  }
}

}  // namespace adder
