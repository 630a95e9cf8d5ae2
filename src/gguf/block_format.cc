#include "gguf/block_format.h"

#include <array>
#include <cassert>

#include "core/half.h"

namespace adder {
namespace {

// Products of a scale, a factor and a quantized integer fit into a float's 24 bits (11 + 6 + 5),
// but for Q6_K's (11 + 8 + 6): so the last operation alone rounds, whether or not the compiler
// contracts it with the one before.

unsigned byte_at(const std::byte* block, int i) { return std::to_integer<unsigned>(block[i]); }

int int8_at(const std::byte* block, int i) {
  return static_cast<std::int8_t>(std::to_integer<std::uint8_t>(block[i]));
}

float half_at(const std::byte* block, int i) {
  return to_float(f16{static_cast<std::uint16_t>(byte_at(block, i) | byte_at(block, i + 1) << 8)});
}

/// Nibble `i` of 32 in 16 bytes.
unsigned nibble(const std::byte* nibbles, int i) {
  return i < 16 ? byte_at(nibbles, i) & 15U : byte_at(nibbles, i - 16) >> 4;
}

/// Bit `i` of a field, moved to the place above a nibble.
unsigned fifth_bit(const std::byte* bits, int i) {
  return (byte_at(bits, i / 8) >> (i % 8) & 1U) << 4;
}

void decode_q8_0(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(int8_at(block, 2 + i));
}

void decode_q4_0(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(static_cast<int>(nibble(block + 2, i)) - 8);
  }
}

void decode_q4_1(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

void decode_q5_0(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) {
    const unsigned q = nibble(block + 6, i) | fifth_bit(block + 2, i);
    out[i] = d * static_cast<float>(static_cast<int>(q) - 16);
  }
}

void decode_q5_1(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 32; ++i) {
    const unsigned q = nibble(block + 8, i) | fifth_bit(block + 4, i);
    out[i] = d * static_cast<float>(q) + m;
  }
}

/// Factor and offset of 32 values.
struct ScaleAndOffset {
  float scale;
  float offset;
};

/// Those of the eight parts of a Q4_K or Q5_K block, which begins with d and m. The first four
/// pairs are the low six bits of bytes 0 to 3 (s) and 4 to 7 (t); the others have their low four
/// bits in the nibbles of bytes 8 to 11, and their high two where those six leave off.
std::array<ScaleAndOffset, 8> scales_and_offsets(const std::byte* block) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  const std::byte* packed = block + 4;
  std::array<ScaleAndOffset, 8> out{};
  for (int i = 0; i < 4; ++i) {
    const unsigned s = byte_at(packed, i);
    const unsigned t = byte_at(packed, 4 + i);
    const unsigned both = byte_at(packed, 8 + i);
    const auto low = static_cast<std::size_t>(i);
    out[low] = {d * static_cast<float>(s & 63U), m * static_cast<float>(t & 63U)};
    out[low + 4] = {d * static_cast<float>((both & 15U) | (s >> 6) << 4),
                    m * static_cast<float>((both >> 4) | (t >> 6) << 4)};
  }
  return out;
}

/// Nibble of value `i` in the 32 of `part`.
unsigned part_nibble(const std::byte* nibbles, int part, int i) {
  return byte_at(nibbles, part / 2 * 32 + i) >> (part % 2 * 4) & 15U;
}

void decode_q4_k(const std::byte* block, float* out) {
  const auto parts = scales_and_offsets(block);
  for (int part = 0; part < 8; ++part) {
    const auto [scale, offset] = parts[static_cast<std::size_t>(part)];
    for (int i = 0; i < 32; ++i) {
      out[part * 32 + i] = scale * static_cast<float>(part_nibble(block + 16, part, i)) - offset;
    }
  }
}

void decode_q5_k(const std::byte* block, float* out) {
  const auto parts = scales_and_offsets(block);
  for (int part = 0; part < 8; ++part) {
    const auto [scale, offset] = parts[static_cast<std::size_t>(part)];
    for (int i = 0; i < 32; ++i) {
      const unsigned high = (byte_at(block, 16 + i) >> part & 1U) << 4;
      out[part * 32 + i] =
          scale * static_cast<float>(part_nibble(block + 48, part, i) | high) - offset;
    }
  }
}

void decode_q6_k(const std::byte* block, float* out) {
  const std::byte* pairs = block + 128;
  const std::byte* scales = block + 192;
  const float d = half_at(block, 208);
  for (int i = 0; i < 256; ++i) {
    // Each half of 128 values lies in 64 bytes of nibbles and 32 of pairs, by parts of 32.
    const int half = i / 128;
    const int part = i / 32 % 4;
    const unsigned low = byte_at(block, half * 64 + part % 2 * 32 + i % 32) >> (part / 2 * 4) & 15U;
    const unsigned high = byte_at(pairs, half * 32 + i % 32) >> (part * 2) & 3U;
    const float scale = d * static_cast<float>(int8_at(scales, i / 16));
    out[i] = scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
  }
}

struct Description {
  std::string_view name;
  BlockSize size;
  void (*decode)(const std::byte* block, float* out);
};

const Description& description_of(BlockFormat format) {
  static constexpr Description kDescriptions[] = {
      {"Q4_0", {32, 18}, decode_q4_0},   {"Q4_1", {32, 20}, decode_q4_1},
      {"Q5_0", {32, 22}, decode_q5_0},   {"Q5_1", {32, 24}, decode_q5_1},
      {"Q8_0", {32, 34}, decode_q8_0},   {"Q4_K", {256, 144}, decode_q4_k},
      {"Q5_K", {256, 176}, decode_q5_k}, {"Q6_K", {256, 210}, decode_q6_k},
  };
  return kDescriptions[static_cast<std::size_t>(format)];
}

}  // namespace

std::string_view name_of(BlockFormat format) { return description_of(format).name; }

BlockSize block_size(BlockFormat format) { return description_of(format).size; }

void decode_blocks(BlockFormat format, std::span<const std::byte> blocks, std::span<float> values) {
  const Description& description = description_of(format);
  const auto bytes = static_cast<std::size_t>(description.size.bytes);
  const auto width = static_cast<std::size_t>(description.size.values);
  assert(values.size() % width == 0 && blocks.size() == values.size() / width * bytes);
  for (std::size_t i = 0; i < values.size() / width; ++i) {
    description.decode(blocks.data() + i * bytes, values.data() + i * width);
  }
}

}  // namespace adder
