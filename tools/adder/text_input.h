#pragma once

// Text and token ids that a subcommand reads: from an option, a file of any size, or standard
// input, in pieces, so that memory does not grow with the length of the text.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adder/tokenizer.h"

namespace adder::cli {

/// -p, -f and --ids, of which at most one is given.
struct TextOptions {
  std::optional<std::string> text;
  std::optional<std::string> file;
  std::optional<std::string> ids;

  /// Adds -p and --ids as asked, and -f always. `what` says what the text is for.
  void add_text_to(CLI::App& app, const std::string& what);
  void add_file_to(CLI::App& app, const std::string& what);
  void add_ids_to(CLI::App& app, const std::string& what);
  bool given() const { return text || file || ids; }
};

/// A text in pieces of bounded size.
class TextReader {
 public:
  static TextReader of_text(std::string text);
  /// "-" is standard input. Throws adder::Error if the file cannot be opened.
  static TextReader of_file(const std::string& path);
  static TextReader of_stdin() { return of_file("-"); }

  TextReader(TextReader&& other) noexcept;
  TextReader& operator=(TextReader&&) = delete;
  ~TextReader();

  /// Replaces `piece` by the next bytes; false at the end, or when a signal interrupted the wait.
  bool next(std::string& piece);
  /// The fraction read so far, or a negative number where the length is unknown.
  double fraction() const;

 private:
  TextReader() = default;

  std::string name_;
  std::string text_;  ///< the whole text, if it did not come from a file
  int descriptor_ = -1;
  std::int64_t size_bytes_ = -1;
  std::int64_t read_bytes_ = 0;
};

/// The tokens of a text, or given ones, a piece at a time.
class TokenReader {
 public:
  /// With `end_of_text`, a line that holds one NUL byte ends a text and starts another one; each
  /// text, the last one too, is followed by that token. The newlines around the NUL byte belong to
  /// the separation.
  TokenReader(const Tokenizer& tokenizer, TextReader text, EncodeOptions options = {},
              std::optional<int> end_of_text = std::nullopt);
  explicit TokenReader(std::vector<int> ids);

  /// Replaces `ids` by the next tokens, at most `limit`; false at the end.
  bool next(std::vector<int>& ids, std::size_t limit);

  double fraction() const;
  /// Bytes of text read, without separations.
  std::int64_t text_bytes() const { return text_bytes_; }

 private:
  void encode(std::string_view text);
  void encode_separated(std::string_view text);
  void end_text();

  std::optional<TextReader> text_;
  std::optional<StreamEncoder> encoder_;
  std::optional<int> end_of_text_;
  std::string piece_;
  std::string held_back_;  ///< the end of what was read, which may begin a separation
  bool text_open_ = false;
  std::int64_t text_bytes_ = 0;
  std::vector<int> ready_;  ///< tokens not handed out yet, from `taken_` on
  std::size_t taken_ = 0;
};

}  // namespace adder::cli
