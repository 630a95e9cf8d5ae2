#include <set>
#include <string_view>

#include "tokenizer/tokenizer_files.h"

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

void check_added_tokens(const JsonNode& root, const TokenizerParts& parts) {
  const auto node = root.find("added_tokens");
  if (!node) return;
  const Vocabulary& vocabulary = parts.bpe.vocabulary();
  std::set<int> ids;
  std::set<std::string_view> contents;
  for (std::size_t i = 0; i < parts.added_tokens.size(); ++i) {
    const AddedToken& token = parts.added_tokens[i];
    const auto known = vocabulary.find(token.content);
    if (known && *known != token.id) {
      node->error("[{}] gives id {} to '{}', expected {} as in model.vocab", i, token.id,
                  token.content, *known);
    }
    if (!known && vocabulary.contains(token.id)) {
      node->error("[{}] gives id {} to '{}', expected '{}' as in model.vocab", i, token.id,
                  token.content, vocabulary.token(token.id));
    }
    if (!ids.insert(token.id).second) {
      node->error("[{}] gives id {} to '{}', which another added token has", i, token.id,
                  token.content);
    }
    if (!contents.insert(token.content).second) {
      node->error("[{}] is a second '{}', expected each content once", i, token.content);
    }
  }
}

void check_post_processor(const JsonNode& root, const TokenizerParts& parts) {
  std::set<int> added;
  for (const AddedToken& token : parts.added_tokens) added.insert(token.id);
  for (const std::vector<int>* ids : {&parts.post_processor.before, &parts.post_processor.after}) {
    for (const int id : *ids) {
      if (parts.bpe.vocabulary().contains(id) || added.contains(id)) continue;
      root.at("post_processor").error("adds id {}, which no token has", id);
    }
  }
}

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view json, const std::string& file) {
  const Json document = parse_json(json, file);
  const JsonNode root(document, "", file);
  const auto added_tokens = root.find("added_tokens");
  TokenizerParts parts{.file = file,
                       .normalizer = component<Normalizer>(root, "normalizer"),
                       .pre_tokenizer = component<PreTokenizer>(root, "pre_tokenizer"),
                       .bpe = parse_model(root.at("model")),
                       .post_processor = component<PostProcessor>(root, "post_processor"),
                       .decoder = component<Decoder>(root, "decoder"),
                       .added_tokens = {}};
  if (added_tokens) parts.added_tokens = parse_added_tokens(*added_tokens);
  check_added_tokens(root, parts);
  check_post_processor(root, parts);
  return parts;
}

}  // namespace adder::text
