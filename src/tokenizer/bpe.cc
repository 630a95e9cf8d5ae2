#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tokenizer/unicode.h"

namespace adder::text {
namespace {

// Up to here, scanning all pairs for the best beats keeping a heap.
constexpr std::size_t kScanLimit = 40;
// The heap's positions are 32 bits wide.
constexpr std::size_t kMaxWordBytes = std::size_t{1} << 31;

std::size_t hash_of(std::string_view word) { return std::hash<std::string_view>{}(word); }

}  // namespace

BpeScratch::BpeScratch(std::size_t expected_bytes)
    : slots_(std::bit_ceil(std::clamp<std::size_t>(expected_bytes / 16, 16, 16384))) {}

Bpe::Bpe(const JsonNode& node) : vocabulary_(node.at("vocab")) {
  prefix_ = node.string("continuing_subword_prefix", "");
  suffix_ = node.string("end_of_word_suffix", "");
  options_.ignore_merges = node.boolean("ignore_merges", false);
  options_.fuse_unknown = node.boolean("fuse_unk", false);
  if (const auto dropout = node.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0) {
      dropout->error("is {}, expected null: random merges are for training",
                     dropout->value().dump(-1, ' ', true).substr(0, 40));
    }
  }
  read_unknown(node);
  options_.byte_fallback = node.boolean("byte_fallback", false);
  index_characters();
  read_merges(node);
}

Bpe::Bpe(Vocabulary vocabulary, const Options& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  index_characters();
}

void Bpe::index_characters() {
  for (std::size_t b = 0; options_.byte_fallback && b < byte_ids_.size(); ++b) {
    byte_ids_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b)).value_or(-1);
  }
  for (char32_t c = 0; c < low_ids_.size(); ++c) {
    std::string character;
    append_utf8(character, c);
    low_ids_[c] = vocabulary_.find(character).value_or(-1);
  }
}

void Bpe::read_unknown(const JsonNode& node) {
  const auto unknown = node.find("unk_token");
  if (!unknown) return;
  const auto id = vocabulary_.find(unknown->string());
  if (!id) unknown->error("is '{}', expected a token of the vocabulary", unknown->string());
  options_.unknown_id = *id;
}

void Bpe::read_merges(const JsonNode& node) {
  const JsonNode merges = node.at("merges");
  if (!merges.value().is_array()) {
    merges.error("is of type {}, expected an array", merges.value().type_name());
  }
  merges_.reserve(merges.value().size());
  std::size_t index = 0;
  for (const Json& merge : merges.value()) {
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        merges.error("[{}] is '{}', expected two tokens separated by a space", index, text);
      }
      const std::string_view view = text;
      read_merge(merges, index, view.substr(0, space), view.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      read_merge(merges, index, merge[0].get_ref<const std::string&>(),
                 merge[1].get_ref<const std::string&>());
    } else {
      merges.error("[{}] is neither a string \"a b\" nor an array of two strings", index);
    }
    ++index;
  }
}

void Bpe::add_merge(int left, int right, int merged, std::uint32_t rank) {
  merges_.set(pair_key(left, right),
              (static_cast<std::uint64_t>(rank) << 32) | static_cast<std::uint32_t>(merged));
}

void Bpe::read_merge(const JsonNode& node, std::size_t index, std::string_view a,
                     std::string_view b) {
  const auto id_of = [&](std::string_view token) {
    const auto id = vocabulary_.find(token);
    if (!id) node.error("[{}] refers to '{}', which is not in the vocabulary", index, token);
    return *id;
  };
  const std::int32_t left_id = id_of(a);
  const std::int32_t right_id = id_of(b);
  if (b.size() < prefix_.size()) {
    node.error("[{}] continues with '{}', expected a token with the prefix '{}'", index, b,
               prefix_);
  }
  std::string joined(a);
  joined += b.substr(prefix_.size());
  add_merge(left_id, right_id, id_of(joined), static_cast<std::uint32_t>(index));
}

void Bpe::tokenize(std::string_view word, bool whole, BpeScratch& scratch,
                   std::vector<int>& ids) const {
  if (word.empty()) return;
  if (options_.ignore_merges && whole) {
    if (const auto id = vocabulary_.find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  BpeScratch::Slot* slot = nullptr;
  if (word.size() <= BpeScratch::kMaxKey) {
    slot = &scratch.slots_[hash_of(word) & (scratch.slots_.size() - 1)];
    if (slot->key_size == word.size() &&
        std::memcmp(slot->key.data(), word.data(), word.size()) == 0) {
      ids.insert(ids.end(), slot->ids.begin(), slot->ids.begin() + slot->nids);
      return;
    }
  }
  check(word.size() < kMaxWordBytes, "tokenizer: a word of {} bytes, expected fewer than {}",
        word.size(), kMaxWordBytes);
  std::vector<std::int32_t>& symbols = scratch.ids_;
  split_into_characters(word, symbols);
  if (symbols.size() <= kScanLimit) {
    merge_by_scan(symbols);
  } else {
    merge_by_heap(symbols, scratch);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (slot != nullptr && symbols.size() <= BpeScratch::kMaxIds) {
    slot->key_size = static_cast<std::uint8_t>(word.size());
    slot->nids = static_cast<std::uint8_t>(symbols.size());
    std::memcpy(slot->key.data(), word.data(), word.size());
    std::copy(symbols.begin(), symbols.end(), slot->ids.begin());
  }
}

void Bpe::split_into_characters(std::string_view word, std::vector<std::int32_t>& ids) const {
  ids.clear();
  bool pending_unknown = false;
  for (std::size_t i = 0; i < word.size();) {
    const CodePoint c = code_point_at(word, i);
    const bool first = i == 0;
    const bool last = i + c.length == word.size();
    const std::string_view character = word.substr(i, c.length);
    i += c.length;
    const bool plain = (first || prefix_.empty()) && (!last || suffix_.empty());
    const std::int32_t id = plain && c.value < low_ids_.size()
                                ? low_ids_[c.value]
                                : character_id(character, first, last);
    if (id >= 0) {
      if (pending_unknown) ids.push_back(options_.unknown_id);
      pending_unknown = false;
      ids.push_back(id);
    } else if (options_.byte_fallback && append_bytes(character, ids)) {
      continue;
    } else if (options_.unknown_id >= 0) {
      if (pending_unknown && !options_.fuse_unknown) ids.push_back(options_.unknown_id);
      pending_unknown = true;
    }
  }
  if (pending_unknown) ids.push_back(options_.unknown_id);
}

std::int32_t Bpe::character_id(std::string_view character, bool first, bool last) const {
  std::string spelled = first ? std::string() : prefix_;
  spelled += character;
  if (last) spelled += suffix_;
  return vocabulary_.find(spelled).value_or(-1);
}

bool Bpe::append_bytes(std::string_view character, std::vector<std::int32_t>& ids) const {
  const auto id_of = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char c) { return id_of(c) >= 0; })) {
    return false;
  }
  for (const char c : character) ids.push_back(id_of(c));
  return true;
}

void Bpe::merge_by_scan(std::vector<std::int32_t>& ids) const {
  std::array<Merge, kScanLimit> stack_pairs;
  std::vector<Merge> heap_pairs;
  Merge* pairs = stack_pairs.data();  // pairs[i] joins ids[i] and ids[i + 1]
  if (ids.size() > kScanLimit) {
    heap_pairs.resize(ids.size());
    pairs = heap_pairs.data();
  }
  std::size_t n = ids.size();
  for (std::size_t i = 0; i + 1 < n; ++i) pairs[i] = merge_of(ids[i], ids[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    ids[best] = pairs[best].id;
    std::move(ids.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              ids.begin() + static_cast<std::ptrdiff_t>(n),
              ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::move(pairs + best + 1, pairs + n - 1, pairs + best);
    --n;
    if (best + 1 < n) pairs[best] = merge_of(ids[best], ids[best + 1]);
    if (best > 0) pairs[best - 1] = merge_of(ids[best - 1], ids[best]);
  }
  ids.resize(n);
}

void Bpe::merge_by_heap(std::vector<std::int32_t>& ids, BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols_;
  std::vector<BpeScratch::Candidate>& heap = scratch.heap_;
  const auto n = static_cast<std::int32_t>(ids.size());
  symbols.clear();
  heap.clear();
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto propose = [&](std::int32_t position) {
    if (position < 0 || symbols[position].next < 0) return;
    const Merge merge = merge_of(symbols[position].id, symbols[symbols[position].next].id);
    if (merge.rank == kNoRank) return;
    heap.push_back({merge.rank, position, merge.id});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::int32_t i = 0; i < n; ++i) symbols.push_back({ids[i], i - 1, i + 1 < n ? i + 1 : -1});
  for (std::int32_t i = 0; i + 1 < n; ++i) propose(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[top.position];
    if (left.id < 0 || left.next < 0) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    // The pair may have changed since it was proposed; its new form has its own candidate.
    const Merge merge = merge_of(left.id, right.id);
    if (merge.rank != top.rank || merge.id != top.merged_id) continue;
    left.id = merge.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = top.position;
    propose(left.previous);
    propose(top.position);
  }
  ids.clear();
  for (std::int32_t i = 0; i >= 0 && i < n; i = symbols[i].next) ids.push_back(symbols[i].id);
}

void Bpe::enable_cuts() {
  if (!prefix_.empty() || !suffix_.empty()) return;  // a token's string is not its characters'
  cuts_enabled_ = true;
  for (int id = 0; id < vocabulary_.size(); ++id) {
    if (!vocabulary_.contains(id)) continue;
    const std::string_view token = vocabulary_.token(id);
    char32_t previous = kInvalid;
    for (std::size_t i = 0; i < token.size();) {
      const CodePoint c = code_point_at(token, i);
      if (previous != kInvalid) {
        neighbours_.set((static_cast<std::uint64_t>(previous) << 32) | c.value, 1);
      }
      previous = c.value;
      i += c.length;
    }
  }
}

bool Bpe::can_cut(char32_t left, char32_t right) const {
  if (!cuts_enabled_ || left == kInvalid || right == kInvalid) return false;
  if (neighbours_.find((static_cast<std::uint64_t>(left) << 32) | right) != FlatMap::kNone) {
    return false;
  }
  // Both start out as themselves, not as bytes or as the unknown token.
  const auto known = [this](char32_t c) {
    if (c < low_ids_.size()) return low_ids_[c] >= 0;
    std::string character;
    append_utf8(character, c);
    return vocabulary_.find(character).has_value();
  };
  return known(left) && known(right);
}

}  // namespace adder::text
