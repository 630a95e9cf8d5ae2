#include "checkpoint/stored_rows.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "core/quantized_panel.h"
#include "core/quote.h"

namespace adder {
namespace {

constexpr std::int64_t kScaleBytes = 2;  // before the codes of a block in Q8_0 and Q4_0

bool is_aligned(const ConstTensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0;
}

f16 scale_of(const std::byte* block) {
  return {static_cast<std::uint16_t>(std::to_integer<unsigned>(block[0]) |
                                     std::to_integer<unsigned>(block[1]) << 8)};
}

bool is_finite(f16 v) { return (v.bits & 0x7c00U) != 0x7c00U; }

}  // namespace

StoredRows::StoredRows(const StoredTensor& stored, const MappedFile& file)
    : stored_(stored),
      file_(file),
      name_(fmt::format("{}: tensor {}", stored.source, in_quotes(stored.name))) {}

ConstTensorView StoredRows::view() const {
  if (stored_.blocks || stored_.panels || !is_aligned(stored_.view)) return {};
  return stored_.view;
}

std::span<const std::byte> StoredRows::bytes_of(std::int64_t first, std::int64_t count) const {
  if (stored_.panels) return {};
  if (stored_.blocks) {
    const auto row_bytes = stored_.blocks->bytes.size() / static_cast<std::size_t>(rows());
    return stored_.blocks->bytes.subspan(static_cast<std::size_t>(first) * row_bytes,
                                         static_cast<std::size_t>(count) * row_bytes);
  }
  const auto row_bytes = static_cast<std::size_t>(columns()) * size_of(stored_.view.dtype);
  return {static_cast<const std::byte*>(stored_.view.data) +
              static_cast<std::size_t>(first) * row_bytes,
          static_cast<std::size_t>(count) * row_bytes};
}

void StoredRows::read(std::int64_t first, std::int64_t count, std::span<float> out) const {
  if (stored_.blocks) return decode_blocks(stored_.blocks->format, bytes_of(first, count), out);
  if (stored_.panels) {
    // The bytes are those of the file, whose owner outlives this.
    const QuantizedMatrix matrix(
        stored_.panels->format, rows(), columns(),
        {std::shared_ptr<const std::byte>(), stored_.panels->bytes.data()});
    const auto row_size = static_cast<std::size_t>(columns());
    for (std::int64_t row = 0; row < count; ++row) {
      matrix.unpack_row(first + row,
                        out.subspan(static_cast<std::size_t>(row) * row_size, row_size));
    }
    return;
  }
  const std::byte* from = bytes_of(first, count).data();
  visit_float(stored_.view.dtype, [&]<typename T>(TypeTag<T>) {
    for (float& to : out) {
      T value;
      std::memcpy(&value, from, sizeof(value));
      from += sizeof(value);
      to = to_float(value);
    }
  });
}

bool StoredRows::has_panels(WeightFormat format) const {
  if (!stored_.blocks) return false;
  return (stored_.blocks->format == BlockFormat::q8_0 && format == WeightFormat::int8) ||
         (stored_.blocks->format == BlockFormat::q4_0 && format == WeightFormat::int4);
}

void StoredRows::write_panel(WeightFormat format, std::int64_t panel, std::byte* to) const {
  const std::int64_t blocks = columns() / kQuantBlock;  // a row of the file has whole ones
  const QuantizedPanel layout(format, blocks);
  const std::int64_t first = panel * kQuantPanelRows;
  const std::int64_t count = std::min(kQuantPanelRows, rows() - first);
  // Every byte is written below but those of rows that are not there and of the end.
  if (count < kQuantPanelRows) layout.clear(to);
  const std::int64_t used = blocks * kQuantPanelRows * (layout.row_bytes() + kScaleBytes);
  std::memset(to + used, 0, static_cast<std::size_t>(layout.bytes() - used));
  const std::int64_t block_bytes = kScaleBytes + layout.row_bytes();
  const std::byte* source = bytes_of(first, count).data();
  // Codes are the integers plus 8 in Q4_0 too, in the same order; those of Q8_0 are signed.
  constexpr std::uint64_t kSigns = 0x8080808080808080U;
  const std::uint64_t flip = format == WeightFormat::int8 ? kSigns : 0;
  // By block: what is written lies together.
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const std::byte* from = source + (lane * blocks + block) * block_bytes;
      const f16 scale = scale_of(from);
      check(is_finite(scale), "{} has a scale that is not finite in row {}, expected a number",
            name_, first + lane);
      std::byte codes[kQuantBlock];
      for (std::int64_t at = 0; at < layout.row_bytes(); at += 8) {
        std::uint64_t eight;
        std::memcpy(&eight, from + kScaleBytes + at, sizeof(eight));
        eight ^= flip;
        std::memcpy(codes + at, &eight, sizeof(eight));
      }
      layout.set_block(to, block, lane, codes, scale);
    }
  }
}

void StoredRows::consumed(std::int64_t first, std::int64_t count) const {
  file_.release(bytes_of(first, count));
}

}  // namespace adder
