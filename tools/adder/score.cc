// adder score: how well a model predicts a text.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <numbers>

#include "commands.h"
#include "core/check.h"
#include "model_options.h"
#include "output.h"
#include "process.h"
#include "progress.h"
#include "text_input.h"

namespace adder::cli {
namespace {

constexpr const char* kExplanation = R"(Every token is predicted from all before it, whatever the
length of the text. With --window W the text is cut instead: window k predicts tokens k*W+1 to k*W+W
from token k*W on, each window starting from an empty state.

Bits per byte are nats per token / ln 2 / bytes per token, with bytes and tokens counted over the
whole text, also where --windows stops before its end.

Examples:
  adder score -f book.txt
  adder score -f books.txt --nul-separated --window 2048 --windows 256 --json
  adder score -f book.txt --device cuda --state-dtype bf16 --piece 1)";

constexpr std::size_t kPieceTokens = 512;

struct Options {
  ModelOptions model;
  TextOptions text;
  bool nul_separated = false;
  std::int64_t window_tokens = 0;
  std::int64_t max_windows = 0;
  bool json = false;
};

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        text_(open_text(options)),
        model_(options.model.load()),
        reader_(token_reader()),
        session_(model_.new_session()) {}

  int operator()() {
    {
      Progress bar("scoring");
      options_.window_tokens > 0 ? score_windows(bar) : score_all(bar);
      seconds_ = watch_.seconds();
    }
    count_the_rest();
    check(scored_tokens_ > 0,
          "score: the text has {} tokens, expected at least two: the first one has no prediction",
          text_tokens_);
    check(options_.max_windows == 0 || windows_ == options_.max_windows,
          "score: the text has {} windows of {} tokens, expected at least the {} of --windows",
          windows_, options_.window_tokens, options_.max_windows);
    report();
    return 0;
  }

 private:
  /// Done before the model is loaded, so that a mistyped name is noticed at once.
  static std::optional<TextReader> open_text(const Options& options) {
    if (options.text.ids) return std::nullopt;
    return TextReader::of_file(*options.text.file);
  }

  TokenReader token_reader() {
    if (options_.text.ids) return TokenReader(parse_ids(*options_.text.ids));
    std::optional<int> end_of_text;
    if (options_.nul_separated) {
      const std::vector<int>& eos = model_.config().eos_token_ids;
      check(!eos.empty(), "--nul-separated: this model names no token that ends a text");
      end_of_text = eos.front();
    }
    return TokenReader(model_.tokenizer(), std::move(*text_), {}, end_of_text);
  }

  bool next(std::vector<int>& ids, std::size_t limit) {
    const bool more = reader_.next(ids, limit);
    text_tokens_ += static_cast<std::int64_t>(ids.size());
    return more;
  }

  void score(std::span<const int> ids, Progress& bar) {
    for (double nll : session_.score(ids)) {
      nll_sum_ += nll;
      ++scored_tokens_;
    }
    const double fraction =
        options_.max_windows == 0
            ? reader_.fraction()
            : static_cast<double>(windows_) / static_cast<double>(options_.max_windows);
    bar.update(fraction, token_note(scored_tokens_, watch_.seconds()));
  }

  void score_all(Progress& bar) {
    for (std::vector<int> ids; next(ids, kPieceTokens);) score(ids, bar);
  }

  void score_windows(Progress& bar) {
    const auto window_tokens = static_cast<std::size_t>(options_.window_tokens);
    std::vector<int> last;  // the token before the window, which it predicts from
    if (!next(last, 1)) return;
    for (std::vector<int> ids; next(ids, window_tokens);) {
      // With a count given, only whole windows are compared.
      if (options_.max_windows > 0 && ids.size() < window_tokens) return;
      session_.reset();
      session_.prefill(last);
      for (std::span<const int> rest = ids; !rest.empty();) {
        const std::size_t count = std::min(rest.size(), kPieceTokens);
        score(rest.first(count), bar);
        rest = rest.subspan(count);
      }
      last = {ids.back()};
      if (++windows_ == options_.max_windows) return;
    }
  }

  /// Tokens and bytes that were not scored still count for the bytes per token.
  void count_the_rest() {
    for (std::vector<int> ids; next(ids, kPieceTokens);) {
    }
  }

  void report() const {
    const double per_token = nll_sum_ / static_cast<double>(scored_tokens_);
    const double bytes_per_token =
        static_cast<double>(reader_.text_bytes()) / static_cast<double>(text_tokens_);
    const double bits_per_byte = per_token / std::numbers::ln2 / bytes_per_token;
    const double rate = static_cast<double>(scored_tokens_) / seconds_;
    const bool has_bytes = !options_.text.ids;
    if (!options_.json) {
      std::string text = fmt::format(
          "tokens scored    {}\nnats             {:.4f}\nnats per token   {:.6f}\n"
          "perplexity       {:.4f}\n",
          grouped(scored_tokens_), nll_sum_, per_token, std::exp(per_token));
      if (has_bytes) text += fmt::format("bits per byte    {:.6f}\n", bits_per_byte);
      if (windows_ > 0) {
        text += fmt::format("windows          {} of {} tokens\n", grouped(windows_),
                            grouped(options_.window_tokens));
      }
      print(text);
      fmt::print(stderr, "{} tokens/s; memory {}\n", human_number(rate),
                 human_bytes(static_cast<double>(peak_rss_bytes())));
      return;
    }
    Json out = {
        {"tokens", scored_tokens_},
        {"nll_sum", nll_sum_},
        {"nll_per_token", per_token},
        {"perplexity", std::exp(per_token)},
        {"bits_per_byte", has_bytes ? Json(bits_per_byte) : Json()},
        {"text_tokens", text_tokens_},
        {"text_bytes", has_bytes ? Json(reader_.text_bytes()) : Json()},
        {"window_tokens", options_.window_tokens > 0 ? Json(options_.window_tokens) : Json()},
        {"windows", windows_ > 0 ? Json(windows_) : Json()},
        {"stats", {{"tokens_per_s", rate}, {"peak_rss_bytes", peak_rss_bytes()}}}};
    print_json(out);
  }

  const Options& options_;
  std::optional<TextReader> text_;
  Model model_;
  TokenReader reader_;
  Session session_;
  StopWatch watch_;
  double seconds_ = 0;
  double nll_sum_ = 0;
  std::int64_t scored_tokens_ = 0;
  std::int64_t text_tokens_ = 0;
  std::int64_t windows_ = 0;
};

}  // namespace

Command add_score(CLI::App& root) {
  CLI::App* app = root.add_subcommand("score", "Measure how well a model predicts a text");
  app->footer(kExplanation);
  auto options = std::make_shared<Options>();
  options->model.add_to(*app);
  options->text.add_file_to(*app, "The text, of any size; - is standard input");
  options->text.add_ids_to(*app, "Token ids instead of a text");
  app->add_flag("--nul-separated", options->nul_separated,
                "Lines that hold one NUL byte separate several texts; each text is followed by the "
                "token that ends a text");
  CLI::Option* window =
      app->add_option("--window", options->window_tokens,
                      "Score independent windows of this many predicted tokens instead")
          ->option_text("TOKENS")
          ->check(whole_number(1));
  app->add_option("--windows", options->max_windows, "Only the first COUNT windows")
      ->option_text("COUNT")
      ->check(whole_number(1))
      ->needs(window);
  app->add_flag("--json", options->json, "Print one JSON object");
  return {app, [options] {
            if (!options->text.given()) throw CLI::RequiredError("-f or --ids");
            return Run(*options)();
          }};
}

}  // namespace adder::cli
