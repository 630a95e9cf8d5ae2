#pragma once

#include <algorithm>
#include <cstdint>

#include "adder/matrix_rows.h"
#include "adder/thread_pool.h"
#include "core/ceil_div.h"

namespace adder::cpu {

/// The fewest panels worth a thread: 64K multiply-adds take a few microseconds, about what waking a
/// thread costs. Packing uses the grain of one token, so that it shares panels out as decoding
/// does.
inline std::int64_t panel_grain(std::int64_t ntokens, std::int64_t panel_elements) {
  return 1 + 65536 / std::max<std::int64_t>(1, ntokens * panel_elements);
}

/// Up to here a product is bound by reading the weight, each part of it once.
inline constexpr std::int64_t kFewTokens = 8;

/// Shares out the panels of a product of few tokens: body(begin, end). A thread reads its own part
/// of the weight, the same each time; where that takes long it takes over what another has left,
/// panel by panel of the widest tile.
template <typename Body>
void for_panels_of_few(ThreadPool& pool, std::int64_t panels, std::int64_t grain, Body&& body) {
  constexpr std::int64_t kWidestTile = 6;
  if (grain > kWidestTile) return pool.parallel_for(panels, grain, body);
  pool.parallel_pieces(panels, kWidestTile, body);
}

/// How threads share out a product of many tokens with the panels of a weight: a table of blocks of
/// tokens, whose inputs stay in L2, by pieces of the weight.
class Cells {
 public:
  /// A kernel goes through `bytes_at_once` bytes of a token's inputs before it takes the next
  /// panel.
  Cells(std::int64_t ntokens, std::int64_t in_features, std::int64_t bytes_at_once,
        std::int64_t panels, int nthreads)
      : ntokens_(ntokens), panels_(panels) {
    const std::int64_t flops = 32 * in_features * ntokens * panels;
    // Cells that are needed lest a thread has nothing to do.
    const std::int64_t least =
        std::max<std::int64_t>(1, std::min<std::int64_t>(4 * nthreads, flops / kLeastFlops));
    std::int64_t rows = ceil_div(
        ntokens, std::clamp(round_down(kBlockBytes / std::max<std::int64_t>(1, bytes_at_once)),
                            kTokenStep, kTokenBlock));
    const std::int64_t columns =
        std::min(ceil_div(std::max(least, flops / kCellFlops), rows), ceil_div(panels, kPanelStep));
    rows = std::max(rows, std::min(ceil_div(least, columns), ceil_div(ntokens, kTokenStep)));
    token_block_ = round_up(ceil_div(ntokens, rows), kTokenStep);
    piece_ = round_up(ceil_div(panels, columns), kPanelStep);
  }

  std::int64_t rows() const { return ceil_div(ntokens_, token_block_); }
  std::int64_t columns() const { return ceil_div(panels_, piece_); }
  std::int64_t first_token(std::int64_t row) const { return row * token_block_; }
  std::int64_t last_token(std::int64_t row) const {
    return std::min(ntokens_, (row + 1) * token_block_);
  }
  std::int64_t first_panel(std::int64_t column) const { return column * piece_; }
  std::int64_t last_panel(std::int64_t column) const {
    return std::min(panels_, (column + 1) * piece_);
  }

 private:
  // Multiples of the extents of every tier's tiles.
  static constexpr std::int64_t kTokenStep = 24;
  static constexpr std::int64_t kPanelStep = 6;
  static constexpr std::int64_t kTokenBlock = 504;
  static constexpr std::int64_t kBlockBytes = 640 * 1024;
  // Some 100 us: little enough that threads end together, enough that x is read from L2 seldom; and
  // what is worth another thread.
  static constexpr std::int64_t kCellFlops = 20'000'000;
  static constexpr std::int64_t kLeastFlops = 1'000'000;

  static std::int64_t round_down(std::int64_t tokens) { return tokens / kTokenStep * kTokenStep; }

  std::int64_t ntokens_;
  std::int64_t panels_;
  std::int64_t token_block_;
  std::int64_t piece_;
};

/// Tells a matrix how far it was read, some hundred thousand elements at a time, since giving
/// back memory is a call of the system.
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
