#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "adder/model.h"
#include "output.h"

namespace adder::cli {

/// Tokens on their way to standard output: as text, or as ids for a model without a tokenizer.
class TokenWriter {
 public:
  /// `silent`: only collects the text.
  TokenWriter(const Model& model, bool silent);

  /// Takes tokens that come before the text: the decoder needs to know them. `shown`: they are
  /// part of the output.
  void prompt(std::span<const int> ids, bool shown);
  void token(int id);
  /// The bytes of an unfinished character, and the end of the line.
  void finish();

  /// The continuation so far.
  const std::string& text() const { return text_; }

 private:
  std::string piece_of(int id);
  void emit(std::string_view piece);

  bool silent_;
  const Tokenizer* tokenizer_;
  std::optional<StreamDecoder> decoder_;
  Output output_;
  std::string text_;
  bool first_ = true;
  bool ends_line_ = false;
};

}  // namespace adder::cli
