#include "tokenizer/model.h"

#include <algorithm>

namespace adder::text {
namespace {

/// The value of an optional component: its own kind of nothing if the file has none.
template <typename Component>
Component component(const JsonNode& root, const std::string& key) {
  const auto node = root.find(key);
  return node ? Component(*node) : Component();
}

Bpe parse_model(const JsonNode& node) {
  // Older files leave the type out; then only BPE has merges.
  const bool has_merges = node.find("merges").has_value();
  const std::string type = node.string("type", has_merges ? "BPE" : "none given");
  if (type != "BPE") {
    node.error("is a model of type '{}', expected BPE, the only one supported", type);
  }
  return Bpe(node);
}

}  // namespace

TokenizerModel::TokenizerModel(std::string_view json, const std::string& file)
    : TokenizerModel(JsonNode(parse_json(json, file), "", file), file) {}

TokenizerModel::TokenizerModel(const JsonNode& root, const std::string& file)
    : file_(file),
      normalizer_(component<Normalizer>(root, "normalizer")),
      pre_tokenizer_(component<PreTokenizer>(root, "pre_tokenizer")),
      bpe_(parse_model(root.at("model"))),
      post_processor_(component<PostProcessor>(root, "post_processor")),
      decoder_(component<Decoder>(root, "decoder")) {
  vocab_size_ = bpe_.vocabulary().size();
  read_added_tokens(root);
  check_post_processor(root);
  // Without words, text is cut where no token could reach across.
  if (pre_tokenizer_.first_split() == pre_tokenizer_.stages.size()) bpe_.enable_cuts();
}

void TokenizerModel::read_added_tokens(const JsonNode& root) {
  const auto node = root.find("added_tokens");
  if (!node) return;
  added_tokens_ = parse_added_tokens(*node);
  const Vocabulary& vocabulary = bpe_.vocabulary();
  RegexScratch scratch;
  for (std::size_t i = 0; i < added_tokens_.size(); ++i) {
    const AddedToken& token = added_tokens_[i];
    const auto known = vocabulary.find(token.content);
    if (known && *known != token.id) {
      node->error("[{}] gives id {} to '{}', expected {} as in model.vocab", i, token.id,
                  token.content, *known);
    }
    if (!known && vocabulary.contains(token.id)) {
      node->error("[{}] gives id {} to '{}', expected '{}' as in model.vocab", i, token.id,
                  token.content, vocabulary.token(token.id));
    }
    if (!added_by_id_.emplace(token.id, i).second) {
      node->error("[{}] gives id {} to '{}', which another added token has", i, token.id,
                  token.content);
    }
    if (!added_ids_.emplace(token.content, token.id).second) {
      node->error("[{}] is a second '{}', expected each content once", i, token.content);
    }
    vocab_size_ = std::max(vocab_size_, token.id + 1);
    std::string storage;
    if (token.normalized) {
      const auto text = normalizer_.apply(token.content, true, scratch, storage);
      if (!text.empty()) normalized_matcher_.add(std::string(text), token);
    } else {
      raw_matcher_.add(token.content, token);
    }
  }
}

void TokenizerModel::check_post_processor(const JsonNode& root) const {
  for (const std::vector<int>* ids : {&post_processor_.before, &post_processor_.after}) {
    for (const int id : *ids) {
      if (!contains(id)) root.at("post_processor").error("adds id {}, which no token has", id);
    }
  }
}

std::optional<int> TokenizerModel::token_id(std::string_view token) const {
  const auto it = added_ids_.find(token);
  if (it != added_ids_.end()) return it->second;
  return bpe_.vocabulary().find(token);
}

const AddedToken* TokenizerModel::added_token(int id) const {
  const auto it = added_by_id_.find(id);
  return it == added_by_id_.end() ? nullptr : &added_tokens_[it->second];
}

std::string_view TokenizerModel::token(int id) const {
  if (const AddedToken* added = added_token(id)) return added->content;
  check(bpe_.vocabulary().contains(id),
        "{}: no token has id {}, expected one of the {} ids of the vocabulary", file_, id,
        bpe_.vocabulary().count());
  return bpe_.vocabulary().token(id);
}

}  // namespace adder::text
