#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "adder/tensor_view.h"
#include "adder/weight_format.h"

namespace adder {

/// A matrix that is read a few rows at a time by whoever packs it, so that it need not be in memory
/// as a whole, in float32 least of all: a tensor in a mapped file, of whatever kind. Members may be
/// called from several threads.
class MatrixRows {
 public:
  virtual ~MatrixRows() = default;
  /// What errors call it.
  virtual const std::string& name() const = 0;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t columns() const = 0;

  /// The matrix where it lies, f32, bf16 or f16 with contiguous rows; undefined if it does not.
  virtual ConstTensorView view() const { return {}; }
  /// Writes rows [first, first + count) as float32, one after another. `out` has their size.
  virtual void read(std::int64_t first, std::int64_t count, std::span<float> out) const = 0;

  /// Whether a QuantizedMatrix of this format holds exactly what is stored.
  virtual bool has_panels(WeightFormat format) const {
    static_cast<void>(format);
    return false;
  }
  /// Writes one panel of that QuantizedMatrix (its panel_bytes). Throws adder::Error for a scale
  /// that is not finite. Only where `has_panels`.
  virtual void write_panel(WeightFormat format, std::int64_t panel, std::byte* to) const {
    static_cast<void>(format);
    static_cast<void>(panel);
    static_cast<void>(to);
  }

  /// Rows [first, first + count) are not needed soon: their memory may be given back.
  virtual void consumed(std::int64_t first, std::int64_t count) const {
    static_cast<void>(first);
    static_cast<void>(count);
  }
};

}  // namespace adder
