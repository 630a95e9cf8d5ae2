#include <algorithm>
#include <array>
#include <numeric>

#include "core/quote.h"
#include "gguf/token_type.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/unicode.h"

namespace adder::text {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kPre = "tokenizer.ggml.pre";

// ---- components, in the words of tokenizer.json

template <typename Component>
Component component(const Json& description, const GgufFile& file) {
  return Component(JsonNode(description, "tokenizer.ggml", file.source()));
}

/// Every match is a word, and so is what lies between two.
Json words(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(pattern)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

/// Bytes as symbols.
Json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
}

Json sequence(const char* key, std::vector<Json> parts) {
  return {{"type", "Sequence"}, {key, std::move(parts)}};
}

/// What the key `pre` stands for.
struct Pre {
  std::vector<std::string> patterns;  ///< each cuts what those before it have left
  bool ignore_merges = false;
  bool adds_bos = false;  ///< unless the file says otherwise
};

/// The pattern of cl100k and of many that followed; they differ in how many digits are a word.
std::string cl100k_pattern(std::string_view digits) {
  return fmt::format(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{}|)"
                     R"( ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                     digits);
}

Pre parse_pre(std::string_view name, const GgufFile& file) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string gpt2(kGpt2Pattern);
  const std::string digit = R"(\p{N})";
  const std::string three_digits = "[0-9][0-9][0-9]";
  if (is_one_of({"gpt-2", "phi-2", "mpt", "olmo", "jais"})) return {.patterns = {gpt2}};
  if (is_one_of({"starcoder", "refact", "command-r", "smollm", "codeshell"})) {
    return {.patterns = {digit, gpt2}};
  }
  if (name == "falcon") {
    return {.patterns = {R"([\p{P}$+<=>^~|`]+)", gpt2, three_digits}};
  }
  if (is_one_of({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"})) {
    return {.patterns = {cl100k_pattern(R"(\p{N}{1,3})")}, .ignore_merges = true, .adds_bos = true};
  }
  if (is_one_of({"dbrx", "smaug-bpe"})) return {.patterns = {cl100k_pattern(R"(\p{N}{1,3})")}};
  if (is_one_of({"qwen2", "stablelm2"})) return {.patterns = {cl100k_pattern(digit)}};
  if (name == "default") {
    return {.patterns = {R"([\p{P}$+<=>^~|]+)", gpt2, R"(\p{N}+)", three_digits}};
  }
  fail("{}: {} is {}, a way of cutting text into words that is not supported", file.source(), kPre,
       in_quotes(name));
}

// ---- tokens

/// The lists of tokens and of their types.
class TokenList {
 public:
  explicit TokenList(const GgufFile& file) : file_(file) {
    auto tokens = file.texts(kTokens);
    check(tokens.has_value(), "{} has no {}, expected the vocabulary", file.source(), kTokens);
    check(tokens->size() <= std::size_t{kMaxTokens}, "{}: {} has {} elements, expected at most {}",
          file.source(), kTokens, tokens->size(), kMaxTokens);
    tokens_ = std::move(*tokens);
    if (auto types = file.integers(kTypes)) {
      check(types->size() == tokens_.size(), "{}: {} has {} elements, expected {} as in {}",
            file.source(), kTypes, types->size(), tokens_.size(), kTokens);
      types_ = std::move(*types);
    }
  }

  int size() const { return static_cast<int>(tokens_.size()); }
  std::string_view operator[](int id) const { return tokens_[static_cast<std::size_t>(id)]; }

  bool is(int id, GgufTokenType type) const {
    return types_.empty() ? type == GgufTokenType::normal
                          : types_[static_cast<std::size_t>(id)] == static_cast<int>(type);
  }
  /// Not there to fill the list only.
  bool is_used(int id) const { return !is(id, GgufTokenType::unused) && !(*this)[id].empty(); }

  Vocabulary vocabulary() const {
    std::size_t total_bytes = 0;
    for (const std::string_view token : tokens_) total_bytes += token.size();
    Vocabulary out(tokens_.size(), total_bytes, size());
    for (int id = 0; id < size(); ++id) {
      if (!is_used(id)) continue;
      const std::string_view token = (*this)[id];
      check(valid_prefix(token) == token.size(), "{}: {} has {} at {}, which is no UTF-8",
            file_.source(), kTokens, in_quotes(token), id);
      check(out.add(token, id), "{}: {} has {} at {} and at {}, expected it once", file_.source(),
            kTokens, in_quotes(token), *out.find(token), id);
    }
    return out;
  }

  std::vector<AddedToken> added_tokens() const {
    std::vector<AddedToken> out;
    for (int id = 0; id < size(); ++id) {
      const bool special = is(id, GgufTokenType::control) || is(id, GgufTokenType::unknown);
      if (!is_used(id) || !(special || is(id, GgufTokenType::user_defined))) continue;
      const std::string_view token = (*this)[id];
      check(token.size() <= kMaxAddedTokenBytes,
            "{}: {} has a token of {} bytes at {}, expected at most {} for its type",
            file_.source(), kTokens, token.size(), id, kMaxAddedTokenBytes);
      out.push_back({.id = id, .content = std::string(token), .special = special});
    }
    return out;
  }

  /// The id under `tokenizer.ggml.NAME_token_id`, or -1.
  int id_of(std::string_view name) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const int id = static_cast<int>(file_.integer(key, 0, kMaxTokens - 1).value_or(-1));
    check(id < size() && (id < 0 || is_used(id)), "{}: {} is {}, which no token of {} has",
          file_.source(), key, id, kTokens);
    return id;
  }

 private:
  const GgufFile& file_;
  std::vector<std::string_view> tokens_;
  std::vector<std::int32_t> types_;  ///< empty: all are normal
};

PostProcessor read_post_processor(const GgufFile& file, const TokenList& tokens, bool adds_bos) {
  PostProcessor out;
  const auto add = [&](std::string_view name, bool fallback, std::vector<int>& ids) {
    const std::string key = fmt::format("tokenizer.ggml.add_{}_token", name);
    if (!file.boolean(key).value_or(fallback)) return;
    const int id = tokens.id_of(name);
    check(id >= 0, "{} puts a token around every text ({}), but has no tokenizer.ggml.{}_token_id",
          file.source(), key, name);
    ids.push_back(id);
  };
  add("bos", adds_bos, out.before);
  add("eos", false, out.after);
  return out;
}

// ---- byte-level BPE

void read_merges(const GgufFile& file, Bpe& bpe) {
  const auto merges = file.texts(kMerges);
  check(merges.has_value(), "{} has no {}, expected those of byte-level BPE", file.source(),
        kMerges);
  std::string joined;
  for (std::size_t i = 0; i < merges->size(); ++i) {
    const std::string_view merge = (*merges)[i];
    const std::size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos,
          "{}: {} has {} at {}, expected two tokens separated by a space", file.source(), kMerges,
          in_quotes(merge), i);
    const auto id_of = [&](std::string_view token) {
      const auto id = bpe.vocabulary().find(token);
      check(id.has_value(), "{}: {} has {} at {}, but {} is not in {}", file.source(), kMerges,
            in_quotes(merge), i, in_quotes(token), kTokens);
      return *id;
    };
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    joined.assign(left).append(right);
    bpe.add_merge(id_of(left), id_of(right), id_of(joined), static_cast<std::uint32_t>(i));
  }
}

TokenizerParts read_gpt2(const GgufFile& file) {
  const Pre pre = parse_pre(file.text(kPre).value_or("default"), file);
  const TokenList tokens(file);
  std::vector<Json> stages;
  for (const std::string& pattern : pre.patterns) stages.push_back(words(pattern));
  stages.push_back(byte_level());  // last: some symbols of bytes are letters and digits
  TokenizerParts parts{
      .file = file.source(),
      .normalizer = {},
      .pre_tokenizer = component<PreTokenizer>(sequence("pretokenizers", stages), file),
      .bpe = Bpe(tokens.vocabulary(), {.ignore_merges = pre.ignore_merges}),
      .post_processor = read_post_processor(file, tokens, pre.adds_bos),
      .decoder = component<Decoder>(byte_level(), file),
      .added_tokens = tokens.added_tokens()};
  read_merges(file, parts.bpe);
  return parts;
}

// ---- SentencePiece's BPE

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581 stands for a space in tokens
// Bounds the work per byte of the vocabulary: a token is looked at in all its halves.
constexpr std::size_t kMaxScoredTokenBytes = 1024;

/// SentencePiece merges the two neighbours whose union has the best score, the leftmost of equals:
/// so a token's rank is that of all pairs that make it.
void add_merges_by_score(const GgufFile& file, const TokenList& tokens, Bpe& bpe) {
  const auto scores = file.numbers(kScores);
  check(scores.has_value(), "{} has no {}, expected those of SentencePiece tokens", file.source(),
        kScores);
  check(scores->size() == static_cast<std::size_t>(tokens.size()),
        "{}: {} has {} elements, expected {} as in {}", file.source(), kScores, scores->size(),
        tokens.size(), kTokens);
  const auto score_of = [&](int id) { return (*scores)[static_cast<std::size_t>(id)]; };
  std::vector<int> order;
  for (int id = 0; id < tokens.size(); ++id) {
    if (!tokens.is(id, GgufTokenType::normal) || !tokens.is_used(id)) continue;
    check(score_of(id) == score_of(id), "{}: {} has a number at {} that is none", file.source(),
          kScores, id);
    check(tokens[id].size() <= kMaxScoredTokenBytes,
          "{}: {} has a token of {} bytes at {}, expected at most {}", file.source(), kTokens,
          tokens[id].size(), id, kMaxScoredTokenBytes);
    order.push_back(id);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return score_of(a) != score_of(b) ? score_of(a) > score_of(b) : a < b;
  });
  const Vocabulary& vocabulary = bpe.vocabulary();
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::string_view token = tokens[order[i]];
    if (i > 0 && score_of(order[i]) != score_of(order[i - 1])) rank = static_cast<std::uint32_t>(i);
    for (std::size_t cut = code_point_at(token, 0).length; cut < token.size();
         cut += code_point_at(token, cut).length) {
      const auto left = vocabulary.find(token.substr(0, cut));
      const auto right = left ? vocabulary.find(token.substr(cut)) : std::nullopt;
      if (right) bpe.add_merge(*left, *right, order[i], rank);
    }
  }
}

TokenizerParts read_llama(const GgufFile& file) {
  const TokenList tokens(file);
  const bool prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  const std::string space(kSpace);
  std::vector<Json> normalizers;
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", space}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}});
  std::vector<Json> decoders = {
      {{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  TokenizerParts parts{
      .file = file.source(),
      .normalizer = component<Normalizer>(sequence("normalizers", normalizers), file),
      .pre_tokenizer = {},
      .bpe =
          Bpe(tokens.vocabulary(),
              {.byte_fallback = true, .fuse_unknown = true, .unknown_id = tokens.id_of("unknown")}),
      .post_processor = read_post_processor(file, tokens, /*adds_bos=*/true),
      .decoder = component<Decoder>(sequence("decoders", decoders), file),
      .added_tokens = tokens.added_tokens()};
  add_merges_by_score(file, tokens, parts.bpe);
  return parts;
}

}  // namespace

TokenizerParts read_gguf_tokenizer(const GgufFile& file) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  const auto model = file.text(kModel);
  check(model.has_value(), "{} has no {}, expected a tokenizer to turn text into ids",
        file.source(), kModel);
  if (model == "gpt2") return read_gpt2(file);
  if (model == "llama") return read_llama(file);
  fail("{}: {} is {}, expected gpt2 or llama, the only ones supported", file.source(), kModel,
       in_quotes(*model));
}

}  // namespace adder::text
