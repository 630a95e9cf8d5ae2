#pragma once

#include <vector>

#include "tokenizer/json_node.h"

namespace adder::text {

/// The `post_processor` of tokenizer.json as far as it concerns a single text: the ids that are put
/// before and after it.
struct PostProcessor {
  std::vector<int> before;
  std::vector<int> after;

  PostProcessor() = default;
  explicit PostProcessor(const JsonNode& node) { add(node); }

 private:
  void add(const JsonNode& node);
  void add_template(const JsonNode& node);
};

}  // namespace adder::text
