#include "adder/tokenizer.h"

#include "core/mapped_file.h"
#include "tokenizer/encoder.h"
#include "tokenizer/model.h"
#include "tokenizer/tokenizer_files.h"

namespace adder {

Tokenizer::Tokenizer(std::shared_ptr<const text::TokenizerModel> model)
    : model_(std::move(model)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  const MappedFile file(is_directory ? path / "tokenizer.json" : path);
  const auto bytes = file.bytes();
  if (is_gguf_file(file.path())) return from_gguf(bytes, file.path().string());
  return from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                   file.path().string());
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  return Tokenizer(
      std::make_shared<const text::TokenizerModel>(text::parse_tokenizer_json(json, name)));
}

Tokenizer Tokenizer::from_gguf(std::span<const std::byte> bytes, const std::string& name) {
  return Tokenizer(std::make_shared<const text::TokenizerModel>(
      text::read_gguf_tokenizer(GgufFile(bytes, name))));
}

std::vector<int> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int> ids;
  ids.reserve(text.size() / 3 + 8);
  text::Encoder encoder(*model_, options, text.size());
  encoder.feed(text, /*final=*/true, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int> ids, bool skip_special) const {
  std::string out;
  text::DecodeStream stream(model_->decoder());
  for (const int id : ids) {
    const std::string_view token = model_->token(id);
    if (skip_special && is_special(id)) continue;
    stream.push(token, model_->added_token(id) != nullptr, out);
  }
  stream.finish(out);
  return out;
}

std::string Tokenizer::piece(int id) const {
  const std::string_view token = model_->token(id);
  return model_->decoder().piece(token, model_->added_token(id) != nullptr);
}

std::string Tokenizer::token_text(int id) const { return std::string(model_->token(id)); }

std::optional<int> Tokenizer::token_id(std::string_view token) const {
  return model_->token_id(token);
}

bool Tokenizer::has_token(int id) const { return model_->contains(id); }

bool Tokenizer::is_special(int id) const {
  const text::AddedToken* added = model_->added_token(id);
  return added != nullptr && added->special;
}

int Tokenizer::vocab_size() const { return model_->vocab_size(); }

}  // namespace adder
