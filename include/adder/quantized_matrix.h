#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "adder/weight_format.h"

namespace adder {

/// Columns of a row that share a scale.
inline constexpr std::int64_t kQuantBlock = 32;
/// Rows of a panel.
inline constexpr std::int64_t kQuantPanelRows = 16;

/// A matrix in 8 or 4 bits, in the layout that the kernels of every CPU tier read and that files
/// hold: panels of 16 rows. A panel has first the codes of its blocks, then their scales, f16
/// [block][16], and ends at a multiple of 64 bytes. A code is what is stored for the integer q: q +
/// 128 (int8) or q + 8 (int4), so that dot products take it as unsigned.
///
///   int8   [block][8][16][4]   4 adjacent columns of a row in a 32-bit lane
///   int4   [block][4][16][4]   two codes a byte: column 4 j + k of the block in the lower half of
///                              byte k of lane group j, column 16 + 4 j + k in the upper
///
/// Both extents are rounded up and padded with codes for zero. A value: copies share the storage,
/// which is never written after packing.
class QuantizedMatrix {
 public:
  QuantizedMatrix() = default;
  /// A matrix whose storage is there, in a mapped file perhaps: `bytes(...)` of them at a multiple
  /// of 64 bytes. Scales may be anything; the results are then whatever follows from them.
  QuantizedMatrix(WeightFormat format, std::int64_t rows, std::int64_t columns,
                  std::shared_ptr<const std::byte> storage);

  /// Bytes of storage of a matrix. Throws adder::Error for a format that is neither int8 nor int4,
  /// and for extents below 0 or so large that the bytes would not fit in 63 bits.
  static std::int64_t bytes(WeightFormat format, std::int64_t rows, std::int64_t columns);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  WeightFormat format() const { return format_; }
  /// What one pass over the matrix reads.
  std::int64_t bytes() const { return panels() * panel_bytes(); }

  std::int64_t blocks() const;  ///< of a row
  std::int64_t panels() const;
  std::int64_t panel_bytes() const;
  const std::byte* data() const { return storage_.get(); }

  /// Writes row `row`, q · scale in f32. Throws adder::Error on a row that is not there or an `out`
  /// of another size.
  void unpack_row(std::int64_t row, std::span<float> out) const;

 private:
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  WeightFormat format_ = WeightFormat::int8;
  std::shared_ptr<const std::byte> storage_;
};

}  // namespace adder
