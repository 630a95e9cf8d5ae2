#pragma once

// Where in a panel of a quantized matrix things are, see adder/quantized_matrix.h. For packing and
// unpacking; kernels go along.

#include <cstdint>
#include <cstring>

#include "adder/dtype.h"
#include "adder/quantized_matrix.h"
#include "core/ceil_div.h"

namespace adder {

class QuantizedPanel {
 public:
  QuantizedPanel(WeightFormat format, std::int64_t blocks)
      : is_int4_(format == WeightFormat::int4), blocks_(blocks) {}

  std::int64_t bytes() const { return round_up(scales_at() + scale_bytes(blocks_), 64); }

  /// The integer of a column (below 32 · blocks) and row (below 16).
  int value(const std::byte* panel, std::int64_t column, std::int64_t lane) const {
    const int byte = std::to_integer<int>(panel[code_at(column, lane)]);
    if (!is_int4_) return byte - kInt8Zero;
    return (is_upper(column) ? byte >> 4 : byte & 15) - kInt4Zero;
  }
  f16 scale(const std::byte* panel, std::int64_t block, std::int64_t lane) const {
    f16 out;
    std::memcpy(&out, panel + scale_at(block, lane), sizeof(out));
    return out;
  }

  /// Bytes of a row's codes in one block as `set_block` takes them.
  std::int64_t row_bytes() const { return block_bytes() / kQuantPanelRows; }

  /// Codes and scale of one block of one row. `codes` is of row_bytes(): a byte for each column, or
  /// with int4 two a byte, column i in the lower half of byte i and column 16 + i in the upper.
  void set_block(std::byte* panel, std::int64_t block, std::int64_t lane, const std::byte* codes,
                 f16 scale) const {
    std::byte* to = panel + block * block_bytes() + lane * kGroup;
    for (std::int64_t at = 0; at < row_bytes(); at += kGroup) {
      std::memcpy(to, codes + at, kGroup);
      to += kQuantPanelRows * kGroup;
    }
    set_scale(panel, block, lane, scale);
  }
  /// Makes all codes those of zero, and scales zero.
  void clear(std::byte* panel) const {
    const int zeros = is_int4_ ? kInt4Zero << 4 | kInt4Zero : kInt8Zero;
    std::memset(panel, zeros, static_cast<std::size_t>(scales_at()));
    std::memset(panel + scales_at(), 0, static_cast<std::size_t>(bytes() - scales_at()));
  }
  void set_scale(std::byte* panel, std::int64_t block, std::int64_t lane, f16 scale) const {
    std::memcpy(panel + scale_at(block, lane), &scale, sizeof(scale));
  }

  /// The code for zero.
  static constexpr int kInt8Zero = 128;
  static constexpr int kInt4Zero = 8;

 private:
  static constexpr std::int64_t kGroup = 4;  // columns of a row that are adjacent

  static bool is_upper(std::int64_t column) { return column % kQuantBlock >= kQuantBlock / 2; }
  static std::int64_t scale_bytes(std::int64_t blocks) { return blocks * kQuantPanelRows * 2; }
  std::int64_t block_bytes() const { return kQuantPanelRows * kQuantBlock / (is_int4_ ? 2 : 1); }
  std::int64_t scales_at() const { return blocks_ * block_bytes(); }
  std::int64_t scale_at(std::int64_t block, std::int64_t lane) const {
    return scales_at() + scale_bytes(block) + 2 * lane;
  }
  std::int64_t code_at(std::int64_t column, std::int64_t lane) const {
    const std::int64_t in_block = column % (is_int4_ ? kQuantBlock / 2 : kQuantBlock);
    return column / kQuantBlock * block_bytes() +
           (in_block / kGroup * kQuantPanelRows + lane) * kGroup + in_block % kGroup;
  }

  bool is_int4_;
  std::int64_t blocks_;
};

}  // namespace adder
