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

/// What a tokenizer consists of, in whichever kind of file it is described.
struct TokenizerParts {
  std::string file;  ///< names it in errors
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  PostProcessor post_processor;  ///< adds only ids that there are
  Decoder decoder;
  /// Ids and contents are unique, and where the vocabulary has either, it has both.
  std::vector<AddedToken> added_tokens;
};

/// A tokenizer; immutable after loading.
class TokenizerModel {
 public:
  explicit TokenizerModel(TokenizerParts parts);

  const Normalizer& normalizer() const { return parts_.normalizer; }
  const PreTokenizer& pre_tokenizer() const { return parts_.pre_tokenizer; }
  const Bpe& bpe() const { return parts_.bpe; }
  const PostProcessor& post_processor() const { return parts_.post_processor; }
  const Decoder& decoder() const { return parts_.decoder; }
  /// Added tokens that are looked for before normalization, and after.
  const AddedTokenMatcher& raw_matcher() const { return raw_matcher_; }
  const AddedTokenMatcher& normalized_matcher() const { return normalized_matcher_; }

  std::optional<int> token_id(std::string_view token) const;
  /// The added token of this id, or null.
  const AddedToken* added_token(int id) const;
  bool contains(int id) const {
    return added_token(id) != nullptr || bpe().vocabulary().contains(id);
  }
  /// How the file spells the token; throws for an id without one.
  std::string_view token(int id) const;
  int vocab_size() const { return vocab_size_; }

 private:
  TokenizerParts parts_;
  std::unordered_map<int, std::size_t> added_by_id_;
  std::unordered_map<std::string_view, int> added_ids_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  int vocab_size_ = 0;
};

}  // namespace adder::text
