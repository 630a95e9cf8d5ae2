#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"

namespace adder::text {

/// Everything that a tokenizer.json says; immutable after loading.
class TokenizerModel {
 public:
  /// Throws adder::Error: `file` names the document.
  TokenizerModel(std::string_view json, const std::string& file);

  const std::string& file() const { return file_; }
  const Normalizer& normalizer() const { return normalizer_; }
  const PreTokenizer& pre_tokenizer() const { return pre_tokenizer_; }
  const Bpe& bpe() const { return bpe_; }
  const PostProcessor& post_processor() const { return post_processor_; }
  const Decoder& decoder() const { return decoder_; }
  /// Added tokens that are looked for before normalization, and after.
  const AddedTokenMatcher& raw_matcher() const { return raw_matcher_; }
  const AddedTokenMatcher& normalized_matcher() const { return normalized_matcher_; }

  std::optional<int> token_id(std::string_view token) const;
  /// The added token of this id, or null.
  const AddedToken* added_token(int id) const;
  bool contains(int id) const {
    return added_token(id) != nullptr || bpe_.vocabulary().contains(id);
  }
  /// How tokenizer.json spells the token; throws for an id without one.
  std::string_view token(int id) const;
  int vocab_size() const { return vocab_size_; }

 private:
  TokenizerModel(const JsonNode& root, const std::string& file);
  void read_added_tokens(const JsonNode& root);
  void check_post_processor(const JsonNode& root) const;

  std::string file_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  PostProcessor post_processor_;
  Decoder decoder_;
  std::vector<AddedToken> added_tokens_;
  std::unordered_map<int, std::size_t> added_by_id_;
  std::unordered_map<std::string_view, int> added_ids_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  int vocab_size_ = 0;
};

}  // namespace adder::text
