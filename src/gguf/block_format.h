#pragma once

// Block-quantized numbers as ggml defines them: a row is cut into blocks of 32 or 256 values, and a
// block is a few float16 scales beside small integers. All are little-endian and without padding;
// d and m are float16, q unsigned unless said otherwise, and fields are stored in this order:
//
//   Q8_0   32   value = d q              d, q[32] int8
//   Q4_0   32   value = d (q - 8)        d, nibbles[16]
//   Q4_1   32   value = d q + m          d, m, nibbles[16]
//   Q5_0   32   value = d (q - 16)       d, high bits[4], nibbles[16]
//   Q5_1   32   value = d q + m          d, m, high bits[4], nibbles[16]
//   Q4_K  256   value = d s q - m t      d, m, (s, t)[8] of 6 bits in 12 bytes, nibbles[128]
//   Q5_K  256   value = d s q - m t      likewise, with high bits[32] before the nibbles
//   Q6_K  256   value = d s (q - 32)     nibbles[128], high pairs[64], s[16] int8, d
//
// In blocks of 32 the low nibbles hold the first 16 values and the high ones the rest. Q4_K and
// Q5_K have a pair (s, t) for every 32 values, and the nibbles of 64 values at a time lie in 32
// bytes; Q6_K has an s for every 16 values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace adder {

enum class BlockFormat : std::uint8_t { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

inline constexpr BlockFormat kBlockFormats[] = {
    BlockFormat::q4_0, BlockFormat::q4_1, BlockFormat::q5_0, BlockFormat::q5_1,
    BlockFormat::q8_0, BlockFormat::q4_k, BlockFormat::q5_k, BlockFormat::q6_k};

/// "Q8_0", "Q4_K": the names that the field uses.
std::string_view name_of(BlockFormat format);

/// What one block holds and takes.
struct BlockSize {
  std::int64_t values;
  std::int64_t bytes;
};
BlockSize block_size(BlockFormat format);

/// The values of whole blocks. `values.size()` is a multiple of what one block holds, and `blocks`
/// has the bytes of exactly so many, at any address. Values are exact: each is one float32 rounding
/// of the formula above at most.
void decode_blocks(BlockFormat format, std::span<const std::byte> blocks, std::span<float> values);

}  // namespace adder
