#pragma once

#include <cstdint>

namespace adder {

/// The elements of `tokenizer.ggml.token_type`.
enum class GgufTokenType : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,       ///< a special token, which text spells out only if asked to
  user_defined = 4,  ///< a token that is found in text before it is cut into words
  unused = 5,        ///< fills the list up to the rows of the embedding
  byte = 6,
};

}  // namespace adder
