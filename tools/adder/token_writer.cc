#include "token_writer.h"

#include <fmt/format.h>

#include <utility>

namespace adder::cli {

TokenWriter::TokenWriter(const Model& model, bool silent)
    : silent_(silent), tokenizer_(model.has_tokenizer() ? &model.tokenizer() : nullptr) {
  if (tokenizer_ != nullptr) decoder_.emplace(*tokenizer_);
}

void TokenWriter::prompt(std::span<const int> ids, bool shown) {
  if (!shown && !decoder_) return;
  for (int id : ids) {
    const std::string piece = piece_of(id);
    if (shown) emit(piece);
  }
  output_.flush();
}

void TokenWriter::token(int id) {
  const std::string piece = piece_of(id);
  text_ += piece;
  emit(piece);
  output_.flush();
}

void TokenWriter::finish() {
  const std::string rest = decoder_ ? decoder_->finish() : std::string();
  text_ += rest;
  emit(rest);
  if (ends_line_) return;
  emit("\n");
  output_.flush();
}

std::string TokenWriter::piece_of(int id) {
  if (!decoder_) return std::exchange(first_, false) ? std::to_string(id) : fmt::format(" {}", id);
  // Models may have more rows than their tokenizer has tokens; those stand for no text.
  return tokenizer_->has_token(id) ? decoder_->push(id) : std::string();
}

void TokenWriter::emit(std::string_view piece) {
  if (silent_ || piece.empty()) return;
  output_.write(piece);
  ends_line_ = piece.back() == '\n';
}

}  // namespace adder::cli
