// adder tokenize: text to ids and back.

#include <fmt/format.h>

#include <memory>

#include "checkpoint/layout.h"
#include "commands.h"
#include "core/check.h"
#include "model_options.h"
#include "output.h"
#include "process.h"
#include "text_input.h"

namespace adder::cli {
namespace {

struct Options {
  ModelOptions model;
  TextOptions text;
  bool decode = false;
  bool json = false;
};

/// Only the tokenizer is needed: the weights beside it are not even opened.
Tokenizer load_tokenizer(const std::filesystem::path& path) {
  std::error_code ignored;
  check(std::filesystem::exists(path, ignored), "{}: there is no such file or folder",
        path.string());
  const auto file = find_tokenizer(path);
  check(file.has_value(), "{}: there is no tokenizer.json beside the checkpoint", path.string());
  return Tokenizer::load(*file);
}

TextReader open_text(const TextOptions& options) {
  if (options.text) return TextReader::of_text(*options.text);
  if (options.file) return TextReader::of_file(*options.file);
  if (stdin_is_terminal()) fmt::print(stderr, "Type a text and end it with Ctrl-D.\n");
  return TextReader::of_stdin();
}

std::string read_all(TextReader text) {
  std::string all;
  for (std::string piece; text.next(piece);) all += piece;
  return all;
}

int encode(const Options& options, const Tokenizer& tokenizer) {
  TokenReader reader(tokenizer, open_text(options.text));
  Output output;
  std::vector<int> all_ids;
  std::vector<std::string> pieces;
  for (std::vector<int> ids; reader.next(ids, 4096);) {
    for (int id : ids) {
      const std::string piece = tokenizer.token_text(id);
      if (options.json) {
        all_ids.push_back(id);
        pieces.push_back(piece);
      } else {
        output.write(fmt::format("{}\t{}\n", id, piece));
      }
    }
  }
  output.flush();
  if (options.json) print_json({{"ids", all_ids}, {"pieces", pieces}});
  return 0;
}

int decode(const Options& options, const Tokenizer& tokenizer) {
  const std::vector<int> ids =
      parse_ids(options.text.ids ? *options.text.ids : read_all(open_text(options.text)));
  const std::string text = tokenizer.decode(ids);
  options.json ? print_json({{"ids", ids}, {"text", text}}) : print(text + "\n");
  return 0;
}

}  // namespace

Command add_tokenize(CLI::App& root) {
  CLI::App* app = root.add_subcommand("tokenize", "Show a text's tokens, or the text of tokens");
  app->footer(
      "Prints one token per line: its id, a tab, its piece as the vocabulary spells it. With\n"
      "--decode, ids (from --ids, -f or standard input) become text.\n\n"
      "Examples:\n"
      "  adder tokenize -p \"It was a dark night\"\n"
      "  adder tokenize -f book.txt | wc -l\n"
      "  adder tokenize --decode --ids 40,507,79");
  auto options = std::make_shared<Options>();
  options->model.add_path_to(*app);
  options->text.add_text_to(*app, "The text");
  options->text.add_file_to(*app, "Read from a file; - is standard input (the default)");
  options->text.add_ids_to(*app, "The ids to decode");
  app->add_flag("--decode", options->decode, "From ids to text");
  app->add_flag("--json", options->json, "Print one JSON object");
  return {app, [options] {
            if (options->text.ids && !options->decode) {
              throw CLI::RequiresError("--ids", "--decode");
            }
            const Tokenizer tokenizer = load_tokenizer(options->model.resolved_path());
            return options->decode ? decode(*options, tokenizer) : encode(*options, tokenizer);
          }};
}

}  // namespace adder::cli
