// Decoded blocks against values that the gguf package computed (tests/data/gguf/make_blocks.py),
// and a few against the formulas.

#include "gguf/block_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/half.h"
#include "tests/support/gguf_builder.h"

namespace adder {
namespace {

std::vector<float> decoded(BlockFormat format, const std::string& blocks) {
  const BlockSize size = block_size(format);
  std::vector<float> values(blocks.size() / static_cast<std::size_t>(size.bytes) *
                            static_cast<std::size_t>(size.values));
  decode_blocks(format, std::as_bytes(std::span(blocks)), values);
  return values;
}

TEST(BlockFormat, DecodesWhatTheReferenceDecodes) {
  constexpr std::size_t kBlocks = 3;
  std::ifstream file("tests/data/gguf/blocks.bin", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::size_t position = 0;
  for (const BlockFormat format : kBlockFormats) {
    const auto [values, bytes] = block_size(format);
    const std::size_t nbytes = kBlocks * static_cast<std::size_t>(bytes);
    const std::size_t nvalues = kBlocks * static_cast<std::size_t>(values);
    ASSERT_LE(position + nbytes + nvalues * sizeof(float), all.size());
    const std::vector<float> got = decoded(format, all.substr(position, nbytes));
    position += nbytes;
    std::vector<float> expected(nvalues);
    std::memcpy(expected.data(), all.data() + position, nvalues * sizeof(float));
    position += nvalues * sizeof(float);
    for (std::size_t i = 0; i < nvalues; ++i) {
      ASSERT_EQ(got[i], expected[i]) << name_of(format) << " value " << i;
    }
  }
  EXPECT_EQ(position, all.size());
}

TEST(BlockFormat, DecodesByTheFormulas) {
  const std::string half = test::raw(to_f16(0.5F));
  const std::string two = test::raw(to_f16(2.0F));
  std::string nibbles;
  for (int i = 0; i < 16; ++i) nibbles += static_cast<char>(i | (15 - i) << 4);
  const std::vector<float> q4_1 = decoded(BlockFormat::q4_1, half + two + nibbles);
  const std::string bits("\xff\xff\x00\x00", 4);  // the first 16 values have their high bit
  const std::vector<float> q5_0 = decoded(BlockFormat::q5_0, half + bits + nibbles);
  for (int i = 0; i < 16; ++i) {
    const auto n = static_cast<float>(i);
    EXPECT_EQ(q4_1[static_cast<std::size_t>(i)], 0.5F * n + 2.0F);
    EXPECT_EQ(q4_1[static_cast<std::size_t>(i) + 16], 0.5F * (15.0F - n) + 2.0F);
    EXPECT_EQ(q5_0[static_cast<std::size_t>(i)], 0.5F * n);
    EXPECT_EQ(q5_0[static_cast<std::size_t>(i) + 16], 0.5F * (15.0F - n - 16.0F));
  }
  const std::vector<float> values = {1.0F, -127.0F, 127.0F, 0.0F};
  std::vector<float> block(32, 0.0F);
  std::copy(values.begin(), values.end(), block.begin());
  EXPECT_EQ(decoded(BlockFormat::q8_0, test::q8_0_blocks(block)), block);
}

TEST(BlockFormat, NamesAndSizes) {
  EXPECT_EQ(name_of(BlockFormat::q8_0), "Q8_0");
  EXPECT_EQ(name_of(BlockFormat::q6_k), "Q6_K");
  EXPECT_EQ(block_size(BlockFormat::q4_0).bytes, 18);
  EXPECT_EQ(block_size(BlockFormat::q5_k).values, 256);
}

}  // namespace
}  // namespace adder
