#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/json_node.h"
#include "tokenizer/vocabulary.h"

namespace adder::text {

/// The tokens of words seen lately, and work space: one per encoding, never shared.
class BpeScratch {
 public:
  /// `expected_bytes` of text decide how many words are remembered (at most 16384).
  explicit BpeScratch(std::size_t expected_bytes);

 private:
  friend class Bpe;
  static constexpr std::size_t kMaxKey = 30;
  static constexpr std::size_t kMaxIds = 8;
  struct Slot {  // one cache line
    std::uint8_t key_size = 0;
    std::uint8_t nids = 0;
    std::array<char, kMaxKey> key;
    std::array<std::int32_t, kMaxIds> ids;
  };
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;
    std::int32_t merged_id;
  };

  std::vector<Slot> slots_;  ///< a power of two
  std::vector<std::int32_t> ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

/// Byte-pair encoding: a word starts as its characters, and the adjacent pair of lowest rank is
/// merged until no pair has one (Sennrich et al., 2016, "Neural Machine Translation of Rare Words
/// with Subword Units", algorithm 1; the leftmost of equals comes first).
///
/// A character outside the vocabulary becomes its bytes (`byte_fallback`), else the unknown token,
/// else nothing, as in the library that the file format comes from.
class Bpe {
 public:
  struct Options {
    bool ignore_merges = false;  ///< a word that is a token is that token, whatever merges say
    bool byte_fallback = false;
    bool fuse_unknown = false;  ///< adjacent unknown characters are one token
    int unknown_id = -1;        ///< -1 is none
  };

  /// `node` is the `model` of tokenizer.json.
  explicit Bpe(const JsonNode& node);
  /// Without merges.
  Bpe(Vocabulary vocabulary, const Options& options);
  /// Adjacent tokens `left` and `right` become `merged`; lower ranks come first.
  void add_merge(int left, int right, int merged, std::uint32_t rank);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// Appends the ids of one word. `whole` says that it is what the pre-tokenizer made, not a part
  /// cut off at `can_cut`.
  void tokenize(std::string_view word, bool whole, BpeScratch& scratch,
                std::vector<int>& ids) const;

  /// No token could ever span the boundary between these two adjacent characters, so that both
  /// sides can be tokenized alone. Always false unless `enable_cuts` was called.
  bool can_cut(char32_t left, char32_t right) const;
  void enable_cuts();

  /// The same merges by scanning (for short words) and with a heap (n log n): for tests.
  void merge_by_scan(std::vector<std::int32_t>& ids) const;
  void merge_by_heap(std::vector<std::int32_t>& ids, BpeScratch& scratch) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

  void read_merges(const JsonNode& node);
  void read_merge(const JsonNode& node, std::size_t index, std::string_view a, std::string_view b);
  void read_unknown(const JsonNode& node);
  void index_characters();

  /// The rank and result of merging two adjacent tokens; kNoRank if they do not merge.
  Merge merge_of(std::int32_t left, std::int32_t right) const {
    const std::uint64_t value = merges_.find(pair_key(left, right));
    if (value == FlatMap::kNone) return {kNoRank, -1};
    return {static_cast<std::uint32_t>(value >> 32), static_cast<std::int32_t>(value & 0xffffffff)};
  }
  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }

  void split_into_characters(std::string_view word, std::vector<std::int32_t>& ids) const;
  std::int32_t character_id(std::string_view character, bool first, bool last) const;
  bool append_bytes(std::string_view character, std::vector<std::int32_t>& ids) const;

  Vocabulary vocabulary_;
  FlatMap merges_;
  std::string prefix_;  ///< of every character but a word's first
  std::string suffix_;  ///< of a word's last character
  Options options_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::array<std::int32_t, 0x300> low_ids_{};  ///< ids of the characters below U+0300, or -1
  bool cuts_enabled_ = false;
  FlatMap neighbours_;  ///< pairs of characters that are adjacent in some token
};

}  // namespace adder::text
