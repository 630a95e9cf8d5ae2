#include "tokenizer/post_processor.h"

#include "tokenizer/vocabulary.h"

namespace adder::text {
namespace {

void append(std::vector<int>& ids, const JsonNode& list) {
  for (const JsonNode& id : list.elements()) {
    ids.push_back(static_cast<int>(id.integer(0, kMaxTokens - 1)));
  }
}

/// `sep` and `cls` of the BERT-like processors: ["</s>", 2].
int named_id(const JsonNode& pair) {
  const std::vector<JsonNode> elements = pair.elements();
  if (elements.size() != 2)
    pair.error("has {} elements, expected a token and its id", elements.size());
  return static_cast<int>(elements[1].integer(0, kMaxTokens - 1));
}

}  // namespace

void PostProcessor::add(const JsonNode& node) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    for (const JsonNode& processor : node.at("processors").elements()) add(processor);
  } else if (type == "TemplateProcessing") {
    add_template(node);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    before.insert(before.begin(), named_id(node.at("cls")));
    after.push_back(named_id(node.at("sep")));
  } else if (type != "ByteLevel") {  // ByteLevel moves offsets and changes no id
    node.error(
        "is a post-processor of type '{}', expected ByteLevel, TemplateProcessing, BertProcessing, "
        "RobertaProcessing or Sequence",
        type);
  }
}

void PostProcessor::add_template(const JsonNode& node) {
  const JsonNode tokens = node.at("special_tokens");
  std::vector<int> left;
  std::vector<int> right;
  int nsequences = 0;
  for (const JsonNode& item : node.at("single").elements()) {
    if (const auto sequence = item.find("Sequence")) {
      if (sequence->at("id").string() != "A") sequence->at("id").error("is not 'A'");
      ++nsequences;
    } else {
      const std::string& name = item.at("SpecialToken").at("id").string();
      append(nsequences == 0 ? left : right, tokens.at(name).at("ids"));
    }
  }
  if (nsequences != 1) node.at("single").error("has the text {} times, expected once", nsequences);
  before.insert(before.begin(), left.begin(), left.end());
  after.insert(after.end(), right.begin(), right.end());
}

}  // namespace adder::text
