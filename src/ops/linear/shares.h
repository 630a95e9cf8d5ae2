#pragma once

#include <algorithm>
#include <cstdint>

#include "adder/matrix_rows.h"

namespace adder::cpu {

/// The fewest panels worth a thread: 64K multiply-adds take a few microseconds, about what waking a
/// thread costs. Packing uses the grain of one token, so that it shares panels out as decoding
/// does.
inline std::int64_t panel_grain(std::int64_t ntokens, std::int64_t panel_elements) {
  return 1 + 65536 / std::max<std::int64_t>(1, ntokens * panel_elements);
}

/// Tells a matrix how far it was read, some hundred thousand elements at a time, since giving back
/// memory is a call of the system.
class ConsumedRows {
 public:
  ConsumedRows(const MatrixRows& matrix, std::int64_t first)
      : matrix_(matrix),
        first_(first),
        most_(kElements / std::max<std::int64_t>(1, matrix.columns())) {}
  /// Rows below `end` were read.
  void up_to(std::int64_t end) {
    if (end - first_ < most_) return;
    matrix_.consumed(first_, end - first_);
    first_ = end;
  }

 private:
  static constexpr std::int64_t kElements = std::int64_t{1} << 19;

  const MatrixRows& matrix_;
  std::int64_t first_;
  std::int64_t most_;
};

}  // namespace adder::cpu
