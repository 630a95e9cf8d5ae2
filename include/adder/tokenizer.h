#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adder/error.h"

namespace adder {

namespace text {
class TokenizerModel;
}

struct EncodeOptions {
  /// Adds what the file's post-processor puts around a text, for instance a token that begins it.
  bool add_special_tokens = true;
  /// Special tokens that are spelled out in the text become their ids. Turn it off for text from
  /// others: then `<|endoftext|>` is read as thirteen characters.
  bool parse_special = true;
};

/// Text to token ids and back: byte-pair encoding as described by a `tokenizer.json` in the format
/// of Hugging Face's `tokenizers`, with the same ids as that library gives.
///
/// Read are: BPE models (byte-level, byte fallback, unknown tokens); the normalizers NFC, NFD,
/// NFKC, NFKD, Lowercase, Strip, Replace, Prepend; the pre-tokenizers ByteLevel, Split, Digits,
/// Punctuation, Whitespace, WhitespaceSplit, Metaspace; the post-processors ByteLevel,
/// TemplateProcessing, BertProcessing, RobertaProcessing; the decoders ByteLevel, ByteFallback,
/// Fuse, Metaspace, BPEDecoder, Replace, Strip; and sequences of them. Anything else is an Error
/// that names it. `truncation` and `padding` are not applied. The tokenizers of GGUF files are made
/// of the same parts.
///
/// Text need not be UTF-8: a byte outside any well-formed sequence becomes a token of its own, so
/// that a byte-level tokenizer without a normalizer gives every text back exactly.
///
/// Copies are cheap and share the vocabulary. Any number of threads may use one object.
class Tokenizer {
 public:
  /// From a tokenizer.json, the directory that holds one, or a GGUF file.
  static Tokenizer load(const std::filesystem::path& path);
  /// From the contents of a tokenizer.json; `name` stands for the file in errors.
  static Tokenizer from_json(std::string_view json, const std::string& name);
  /// From the metadata of a GGUF file, `bytes`, which need not outlive the call: byte-level BPE
  /// (`tokenizer.ggml.model` gpt2) or SentencePiece's (llama). Such a file has no place for a
  /// normalizer, so text is taken as it is.
  static Tokenizer from_gguf(std::span<const std::byte> bytes, const std::string& name);

  /// The ids of a text. A character that the vocabulary cannot spell, if there is neither byte
  /// fallback nor an unknown token, has no id.
  std::vector<int> encode(std::string_view text, EncodeOptions options = {}) const;

  /// The bytes that the ids stand for; not changed where they are no UTF-8. `skip_special` leaves
  /// special tokens out. Throws for an id that no token has.
  std::string decode(std::span<const int> ids, bool skip_special = false) const;

  /// The bytes that one token adds in the middle of a text; they may be part of a character.
  std::string piece(int id) const;
  /// The token as the file spells it, always UTF-8: for display.
  std::string token_text(int id) const;

  /// The id of a token as the file spells it.
  std::optional<int> token_id(std::string_view token) const;
  bool has_token(int id) const;
  bool is_special(int id) const;
  /// One more than the largest id. A model may have more rows than that.
  int vocab_size() const;

 private:
  friend class StreamDecoder;
  friend class StreamEncoder;
  explicit Tokenizer(std::shared_ptr<const text::TokenizerModel> model);
  std::shared_ptr<const text::TokenizerModel> model_;
};

/// Decodes ids one at a time into text that can be shown at once: an output never ends within a
/// character. All outputs together are what Tokenizer::decode returns.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string push(int id);
  /// What was kept back, even if it is part of a character. Then another text may follow.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Encodes a text that arrives in pieces cut anywhere, even within characters. Ids are appended as
/// soon as no later text can change them, and all of them together are what Tokenizer::encode
/// returns for the whole. Memory is bounded by the longest word (or run of spaces); only the
/// normalizers Strip, and Replace of more than one character, need to see the whole text between
/// two added tokens.
class StreamEncoder {
 public:
  explicit StreamEncoder(const Tokenizer& tokenizer, EncodeOptions options = {});
  ~StreamEncoder();
  StreamEncoder(StreamEncoder&&) noexcept;
  StreamEncoder& operator=(StreamEncoder&&) noexcept;

  void push(std::string_view piece, std::vector<int>& ids);
  /// Ends the text; another may follow.
  void finish(std::vector<int>& ids);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace adder
