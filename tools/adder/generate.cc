// adder generate: its options, and a run with one prompt, whose continuation is streamed.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <random>

#include "commands.h"
#include "core/check.h"
#include "generate.h"
#include "output.h"
#include "process.h"
#include "progress.h"
#include "token_writer.h"

namespace adder::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  adder generate -p "It was a dark and stormy night" -n 200
  adder generate -m mamba2-130m -f prompt.txt --temp 0 --json
  adder generate -f book.txt -n 0 --save-state book.state
  adder generate --load-state book.state -p "The end of it was that" -n 100
  adder generate -p "It was" -p "She said" -p "The sea" -n 50
  adder generate --prompts prompts.jsonl --batch 32 > texts.jsonl

Standard output gets the text: the prompt too if it was given with -p, the continuation alone
otherwise (--echo and --no-echo say so explicitly). Speed and memory go to standard error.
Several prompts are continued together, and a line of JSON is printed for each, in their order.
Ctrl-C ends the text early, saves the state if asked to, and exits with 130.)";

// The session works in pieces of this size: feeding it so costs nothing, and a signal is noticed
// after each.
constexpr std::size_t kPieceTokens = 512;

/// One run of the command.
class Run {
 public:
  explicit Run(const GenerateArguments& options)
      : options_(options),
        text_(open_text(options)),
        model_(options.model.load()),
        load_s_(watch_.seconds()),
        session_(model_.new_session()),
        writer_(model_, options.json) {}

  int operator()() {
    const InterruptGuard guard;
    bool closed = false;
    try {
      restore();
      read_prompt();
      if (!InterruptGuard::interrupted()) write_continuation();
      writer_.finish();
    } catch (const OutputClosed&) {
      closed = true;
    }
    if (!options_.save_state.empty()) session_.snapshot().save(options_.save_state);
    if (!closed) report();
    return InterruptGuard::interrupted() ? InterruptGuard::exit_code() : 0;
  }

 private:
  void restore() {
    if (options_.load_state.empty()) return;
    restored_tokens_ = session_.restore(Snapshot::load(options_.load_state, model_));
    if (!options_.json) {
      fmt::print(stderr, "{}: the state of {} tokens\n", options_.load_state,
                 grouped(restored_tokens_));
    }
  }

  /// Done before the model is loaded, so that a mistyped name is noticed at once.
  static std::optional<TextReader> open_text(const GenerateArguments& options) {
    const TextOptions& prompt = options.prompt;
    if (prompt.text) return TextReader::of_text(*prompt.text);
    if (prompt.file) return TextReader::of_file(*prompt.file);
    if (prompt.ids || !options.load_state.empty()) return std::nullopt;
    return TextReader::of_stdin();
  }

  std::optional<TokenReader> prompt_reader() {
    if (options_.prompt.ids) return TokenReader(parse_ids(*options_.prompt.ids));
    if (!text_) return std::nullopt;
    const Tokenizer& tokenizer = model_.tokenizer();
    if (!options_.prompt.given() && stdin_is_terminal()) {
      fmt::print(stderr, "Type a prompt and end it with Ctrl-D.\n");
    }
    // A token that begins a text does not belong in the middle of one.
    const EncodeOptions encoding{.add_special_tokens = session_.position() == 0};
    return TokenReader(tokenizer, std::move(*text_), encoding);
  }

  void read_prompt() {
    const bool shown = options_.echo || (options_.prompt.text && !options_.no_echo);
    std::vector<int> ids;
    if (std::optional<TokenReader> reader = prompt_reader()) {
      Progress bar("reading the prompt");
      while (!InterruptGuard::interrupted() && reader->next(ids, kPieceTokens)) {
        feed(ids, shown);
        // With the text on the screen, the text itself shows how far things are.
        if (!shown) bar.update(reader->fraction(), token_note(prompt_tokens_, prefill_s_));
      }
    }
    if (session_.position() == 0 && !InterruptGuard::interrupted())
      feed({first_token(model_)}, false);
  }

  void feed(const std::vector<int>& ids, bool shown) {
    writer_.prompt(ids, shown);
    const StopWatch watch;
    session_.prefill(ids);
    prefill_s_ += watch.seconds();
    prompt_tokens_ += static_cast<std::int64_t>(ids.size());
    if (options_.json) prompt_ids_.insert(prompt_ids_.end(), ids.begin(), ids.end());
  }

  void write_continuation() {
    const StopWatch watch;
    Generation generation = session_.generate(options_.generate);
    for (int token : generation) {
      if (++generated_tokens_ == 1) first_token_s_ = seconds_since_start();
      decode_s_ = watch.seconds();
      if (options_.json) ids_.push_back(token);
      writer_.token(token);
      if (InterruptGuard::interrupted()) return;
    }
    stop_ = generation.stop_reason() == StopReason::end_of_text ? "end_of_text" : "max_tokens";
  }

  static double rate(std::int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }

  void report() const { options_.json ? report_json() : report_line(); }

  /// The line of speed and memory.
  void report_line() const {
    std::string line =
        fmt::format("prompt {}; generated {}", token_note(prompt_tokens_, prefill_s_),
                    token_note(generated_tokens_, decode_s_));
    if (generated_tokens_ > 0) line += fmt::format("; first token {:.2f} s", first_token_s_);
    fmt::print(stderr, "{}; load {:.2f} s; memory {}, state {}; seed {}\n", line, load_s_,
               human_bytes(static_cast<double>(peak_rss_bytes())),
               human_bytes(static_cast<double>(model_.state_bytes())), options_.generate.seed);
  }

  void report_json() const {
    const double prefill_rate = rate(prompt_tokens_, prefill_s_);
    const double decode_rate = rate(generated_tokens_, decode_s_);
    print_json({{"prompt_ids", prompt_ids_},
                {"ids", ids_},
                {"text", writer_.text()},
                {"stop", stop_},
                {"stats",
                 {{"prefill_tokens_per_s", prefill_rate},
                  {"decode_tokens_per_s", decode_rate},
                  {"load_s", load_s_},
                  {"first_token_s", generated_tokens_ > 0 ? Json(first_token_s_) : Json()},
                  {"peak_rss_bytes", peak_rss_bytes()},
                  {"state_bytes", model_.state_bytes()},
                  {"prompt_tokens", prompt_tokens_},
                  {"generated_tokens", generated_tokens_},
                  {"restored_tokens", restored_tokens_},
                  {"threads", model_.nthreads()},
                  {"dtype", name_of(model_.weight_format())},
                  {"state_dtype", name_of(model_.state_dtype())},
                  {"seed", options_.generate.seed}}}});
  }

  const GenerateArguments& options_;
  std::optional<TextReader> text_;
  StopWatch watch_;
  Model model_;
  double load_s_;
  Session session_;
  TokenWriter writer_;
  std::vector<int> prompt_ids_;
  std::vector<int> ids_;
  std::string stop_ = "interrupted";
  std::int64_t restored_tokens_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t generated_tokens_ = 0;
  double prefill_s_ = 0;
  double decode_s_ = 0;
  double first_token_s_ = 0;
};

void add_sampling_options(CLI::App& app, GenerateArguments& options) {
  SamplingParams& sampling = options.generate.sampling;
  app.add_option("--temp", sampling.temperature,
                 "Divides the logits; 0 takes the most likely token (default: 0.8)")
      ->option_text("T")
      ->check(real_number(0, 1000));
  app.add_option("--top-k", sampling.top_k, "Keep the K most likely tokens; 0 is off (default: 40)")
      ->option_text("K")
      ->check(whole_number(0, std::numeric_limits<int>::max()));
  app.add_option("--top-p", sampling.top_p,
                 "Keep the most likely tokens up to this probability in all; 1 is off "
                 "(default: 0.95)")
      ->option_text("P")
      ->check(real_number(0, 1));
  app.add_option("--min-p", sampling.min_p,
                 "Keep tokens at least P times as likely as the best; 0 is off (default: 0.05)")
      ->option_text("P")
      ->check(real_number(0, 1));
  app.add_option("--repeat-penalty", sampling.repeat_penalty,
                 "Above 1 makes recent tokens less likely; 1 is off (default: 1)")
      ->option_text("X")
      ->check(real_number(0.01, 100));
  app.add_option("--repeat-last-n", options.generate.repeat_window,
                 "How many recent tokens the penalty looks at (default: 64)")
      ->option_text("N")
      ->check(whole_number(0, 256));
  app.add_option("--seed", options.seed,
                 "Same seed, same text (default: a random one, shown at the end)")
      ->option_text("N")
      ->check(seed_number());
}

void add_options(CLI::App& app, GenerateArguments& options) {
  options.model.add_to(app);
  app.add_option(
         "-p,--prompt",
         [&options](const CLI::results_t& values) {
           options.texts = values;
           return true;
         },
         "The prompt; may be given several times")
      ->option_text("TEXT")
      ->type_size(1)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
  options.prompt.add_file_to(app, "Read the prompt from a file of any size; - is standard input");
  options.prompt.add_ids_to(app, "The prompt as token ids");
  CLI::Option* file =
      app.add_option("--prompts", options.prompts_file,
                     "Continue all prompts of a file, one a line: texts, or JSON objects whose "
                     "\"prompt\" is a text or a list of token ids; - is standard input")
          ->option_text("FILE");
  for (const char* other : {"--prompt", "--file", "--ids"}) file->excludes(other);
  app.add_option("--batch", options.batch,
                 "So many of several prompts are continued together at most (default: 64)")
      ->option_text("N")
      ->check(whole_number(1, 4096));
  app.add_option("-n,--tokens", options.generate.max_tokens,
                 "Tokens to generate at most, for each prompt; -1 is no limit (default: 128)")
      ->option_text("N")
      ->check(whole_number(-1));
  add_sampling_options(app, options);
  app.add_flag("--ignore-eos", options.ignore_eos, "Go on after the token that ends the text");
  app.add_option("--save-state", options.save_state,
                 "Write the state after the last token to a file")
      ->option_text("FILE");
  app.add_option("--load-state", options.load_state,
                 "Continue from a saved state; then a prompt may be left out")
      ->option_text("FILE");
  CLI::Option* echo = app.add_flag("--echo", options.echo, "Write the prompt before the text");
  app.add_flag("--no-echo", options.no_echo, "Do not write the prompt (default: only with -p)")
      ->excludes(echo);
  app.add_flag("--json", options.json,
               "Print one JSON object at the end instead of the text; with several prompts, token "
               "ids too");
}

/// Notices before hours of work what would only fail after them.
void check_state_files(const GenerateArguments& options) {
  std::error_code ignored;
  check(options.load_state.empty() || std::filesystem::exists(options.load_state, ignored),
        "--load-state {}: there is no such file", options.load_state);
  const std::string& state_file = options.save_state;
  const std::filesystem::path folder = std::filesystem::path(state_file).parent_path();
  check(folder.empty() || std::filesystem::is_directory(folder, ignored),
        "--save-state {}: there is no folder {}", state_file, folder.string());
}

/// What one prompt has and several have not.
void check_one_prompt(const GenerateArguments& options) {
  if (!options.has_several_prompts()) return;
  const std::string expected = "expected one prompt: several are printed as JSON";
  if (options.echo) throw CLI::ValidationError("--echo", expected);
  if (options.no_echo) throw CLI::ValidationError("--no-echo", expected);
  if (!options.save_state.empty()) {
    throw CLI::ValidationError("--save-state", "expected one prompt: a file holds one state");
  }
}

}  // namespace

int first_token(const Model& model) {
  const ModelConfig& config = model.config();
  if (config.bos_token_id) return *config.bos_token_id;
  check(!config.eos_token_ids.empty(),
        "the prompt is empty, expected at least one token, since this model names no token that a "
        "text begins with");
  return config.eos_token_ids.front();
}

Command add_generate(CLI::App& root) {
  CLI::App* app = root.add_subcommand("generate", "Continue a prompt: stream text from a model");
  app->footer(kExamples);
  auto options = std::make_shared<GenerateArguments>();
  add_options(*app, *options);
  return {app, [options] {
            check_one_prompt(*options);
            check_state_files(*options);
            options->generate.stop_at_eos = !options->ignore_eos;
            options->generate.seed = options->seed.value_or(std::random_device{}());
            if (options->has_several_prompts()) return generate_batch(*options);
            if (!options->texts.empty()) options->prompt.text = options->texts.front();
            return Run(*options)();
          }};
}

}  // namespace adder::cli
