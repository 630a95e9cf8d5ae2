#include "tokenizer/model.h"

#include <algorithm>

namespace adder::text {

TokenizerModel::TokenizerModel(TokenizerParts parts) : parts_(std::move(parts)) {
  vocab_size_ = bpe().vocabulary().size();
  RegexScratch scratch;
  for (std::size_t i = 0; i < parts_.added_tokens.size(); ++i) {
    const AddedToken& token = parts_.added_tokens[i];
    added_by_id_.emplace(token.id, i);
    added_ids_.emplace(token.content, token.id);
    vocab_size_ = std::max(vocab_size_, token.id + 1);
    std::string storage;
    if (token.normalized) {
      const auto text = normalizer().apply(token.content, true, scratch, storage);
      if (!text.empty()) normalized_matcher_.add(std::string(text), token);
    } else {
      raw_matcher_.add(token.content, token);
    }
  }
  // Without words, text is cut where no token could reach across.
  if (pre_tokenizer().first_split() == pre_tokenizer().stages.size()) parts_.bpe.enable_cuts();
}

std::optional<int> TokenizerModel::token_id(std::string_view token) const {
  const auto it = added_ids_.find(token);
  if (it != added_ids_.end()) return it->second;
  return bpe().vocabulary().find(token);
}

const AddedToken* TokenizerModel::added_token(int id) const {
  const auto it = added_by_id_.find(id);
  return it == added_by_id_.end() ? nullptr : &parts_.added_tokens[it->second];
}

std::string_view TokenizerModel::token(int id) const {
  if (const AddedToken* added = added_token(id)) return added->content;
  check(bpe().vocabulary().contains(id),
        "{}: no token has id {}, expected one of the {} ids of the vocabulary", parts_.file, id,
        bpe().vocabulary().count());
  return bpe().vocabulary().token(id);
}

}  // namespace adder::text
