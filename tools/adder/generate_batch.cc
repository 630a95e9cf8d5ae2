// adder generate with several prompts: they are generated together, and a line of JSON is printed
// for each.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "adder/batch.h"
#include "core/check.h"
#include "generate.h"
#include "output.h"
#include "process.h"
#include "progress.h"
#include "prompt_list.h"
#include "token_writer.h"

namespace adder::cli {
namespace {

// Of a prompt, as large as the pieces that a session alone is fed by on the CPU; and of all prompts
// that are fed at once, so that a signal is noticed soon.
constexpr std::size_t kPieceTokens = 512;
constexpr std::size_t kTokensAtOnce = 8192;

class BatchRun {
 public:
  explicit BatchRun(const GenerateArguments& arguments)
      : arguments_(arguments),
        prompts_(arguments.prompts_file.empty() ? prompts_of(arguments.texts)
                                                : read_prompts(arguments.prompts_file)),
        model_(arguments.model.load()),
        load_s_(watch_.seconds()),
        sequences_(prompts_.size()),
        lines_(prompts_.size()) {
    for (const Prompt& prompt : prompts_) check_ids(prompt);
  }

  int operator()() {
    const InterruptGuard guard;
    bool closed = false;
    try {
      restore();
      bar_.emplace("generating");
      generate();
      finish_ended();
      for (std::size_t i : running_) finish(i, "interrupted");
      print_lines();
    } catch (const OutputClosed&) {
      closed = true;
    }
    bar_.reset();
    if (!closed) report();
    return InterruptGuard::interrupted() ? InterruptGuard::exit_code() : 0;
  }

 private:
  /// A prompt that is being continued.
  struct Sequence {
    explicit Sequence(Session s) : session(std::move(s)) {}
    Session session;
    std::vector<int> prompt_ids;
    std::size_t fed = 0;  ///< of prompt_ids
    std::vector<int> ids;
  };

  /// Done for all before the first is fed.
  void check_ids(const Prompt& prompt) const {
    if (prompt.value.is_string()) return static_cast<void>(model_.tokenizer());
    const std::int64_t vocab_size = model_.config().padded_vocab_size;
    for (const Json& id : prompt.value) {
      check(id < vocab_size, "{}: it has the token {}, expected an id from 0 to {}", prompt.source,
            id.get<std::int64_t>(), vocab_size - 1);
    }
  }

  void restore() {
    if (arguments_.load_state.empty()) return;
    start_ = Snapshot::load(arguments_.load_state, model_);
    fmt::print(stderr, "{}: the state of {} tokens\n", arguments_.load_state,
               grouped(start_->ntokens()));
  }

  std::vector<int> ids_of(const Prompt& prompt) const {
    const bool is_beginning = !start_ || start_->ntokens() == 0;
    std::vector<int> ids =
        prompt.value.is_string()
            ? model_.tokenizer().encode(prompt.value.get_ref<const std::string&>(),
                                        {.add_special_tokens = is_beginning})
            : prompt.value.get<std::vector<int>>();
    if (ids.empty() && is_beginning) ids.push_back(first_token(model_));
    return ids;
  }

  void generate() {
    std::size_t last = 0;
    StopWatch watch;
    while (!InterruptGuard::interrupted()) {
      if (should_begin_more()) {
        decode_s_ += watch.seconds();
        begin_more();
        watch = {};
      }
      const auto next = batch_.next();
      // Turns go up; those of a round that ended before are known then.
      if (!next || next->sequence <= last) finish_ended();
      if (next) {
        last = next->sequence;
        sequences_[last]->ids.push_back(next->token);
        if (++generated_tokens_ == 1) first_token_s_ = seconds_since_start();
      } else if (begun_ == prompts_.size()) {
        break;
      }
    }
    decode_s_ += watch.seconds();
  }

  /// A few at a time: all that run are taken up anew.
  bool should_begin_more() const {
    const std::size_t most = static_cast<std::size_t>(arguments_.batch);
    const std::size_t room = most - running_.size();
    return begun_ < prompts_.size() &&
           (running_.empty() || room >= std::max(most / 4, std::size_t{1}));
  }

  void begin_more() {
    std::vector<std::size_t> begun;
    while (begun_ < prompts_.size() &&
           running_.size() + begun.size() < static_cast<std::size_t>(arguments_.batch)) {
      Sequence& sequence = sequences_[begun_].emplace(model_.new_session());
      sequence.prompt_ids = ids_of(prompts_[begun_]);
      if (start_) sequence.session.restore(*start_);
      begun.push_back(begun_++);
    }
    feed(begun);
    if (InterruptGuard::interrupted()) return;
    for (std::size_t i : begun) {
      GenerateOptions options = arguments_.generate;
      options.seed += i;
      batch_.add(sequences_[i]->session, options);
      running_.push_back(i);
    }
  }

  void feed(std::span<const std::size_t> begun) {
    Progress bar("reading prompts");
    const StopWatch watch;
    const double before_s = prefill_s_;
    while (!InterruptGuard::interrupted()) {
      std::vector<Session*> sessions;
      std::vector<std::vector<int>> pieces;
      std::size_t total = 0;
      for (std::size_t i : begun) {
        Sequence& sequence = *sequences_[i];
        const std::span<const int> left = std::span(sequence.prompt_ids).subspan(sequence.fed);
        if (left.empty() || total >= kTokensAtOnce) continue;
        const std::span<const int> piece = left.first(std::min(left.size(), kPieceTokens));
        sessions.push_back(&sequence.session);
        pieces.emplace_back(piece.begin(), piece.end());
        sequence.fed += piece.size();
        total += piece.size();
      }
      if (sessions.empty()) break;
      prefill(sessions, pieces);
      prompt_tokens_ += static_cast<std::int64_t>(total);
      prefill_s_ = before_s + watch.seconds();
      bar.update(-1, token_note(prompt_tokens_, prefill_s_));
    }
  }

  void finish_ended() {
    std::erase_if(running_, [&](std::size_t i) {
      const StopReason reason = batch_.stop_reason(i);
      if (reason == StopReason::running) return false;
      finish(i, reason == StopReason::end_of_text ? "end_of_text" : "max_tokens");
      return true;
    });
    print_lines();
    if (bar_) {
      bar_->update(static_cast<double>(ended_) / static_cast<double>(prompts_.size()),
                   fmt::format("of {} prompts, {} tokens", grouped(std::ssize(prompts_)),
                               grouped(generated_tokens_)));
    }
  }

  void finish(std::size_t i, const std::string& stop) {
    const Sequence& sequence = *sequences_[i];
    TokenWriter writer(model_, true);
    writer.prompt(sequence.prompt_ids, false);
    for (int id : sequence.ids) writer.token(id);
    writer.finish();
    Json line = {{"index", i},
                 {"prompt", prompts_[i].value},
                 {"text", writer.text()},
                 {"stop", stop},
                 {"prompt_tokens", sequence.prompt_ids.size()},
                 {"generated_tokens", sequence.ids.size()},
                 {"seed", arguments_.generate.seed + i}};
    if (arguments_.json) {
      line["prompt_ids"] = sequence.prompt_ids;
      line["ids"] = sequence.ids;
    }
    lines_[i] = json_line(line);
    sequences_[i].reset();
    ++ended_;
  }

  /// Those that are ready, in the order of the prompts.
  void print_lines() {
    std::string text;
    while (printed_ < lines_.size() && lines_[printed_]) {
      text += *std::exchange(lines_[printed_++], std::string());
    }
    if (text.empty()) return;
    bar_.reset();  // wiped, should both go to one terminal
    print(text);
    bar_.emplace("generating");
  }

  /// The line of speed and memory.
  void report() const {
    std::string line = fmt::format(
        "{} of {} prompts: {}; generated {}", grouped(printed_), grouped(std::ssize(prompts_)),
        token_note(prompt_tokens_, prefill_s_), token_note(generated_tokens_, decode_s_));
    if (generated_tokens_ > 0) line += fmt::format("; first token {:.2f} s", first_token_s_);
    fmt::print(stderr, "{}; load {:.2f} s; memory {}, state {} each; seed {}\n", line, load_s_,
               human_bytes(static_cast<double>(peak_rss_bytes())),
               human_bytes(static_cast<double>(model_.state_bytes())), arguments_.generate.seed);
  }

  const GenerateArguments& arguments_;
  std::vector<Prompt> prompts_;
  StopWatch watch_;
  Model model_;
  double load_s_;
  std::optional<Snapshot> start_;
  std::vector<std::optional<Sequence>> sequences_;  ///< of each prompt, while it is continued
  BatchGeneration batch_;                           ///< numbers its sequences as prompts are
  std::vector<std::size_t> running_;
  std::vector<std::optional<std::string>> lines_;
  std::optional<Progress> bar_;
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::size_t printed_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t generated_tokens_ = 0;
  double prefill_s_ = 0;
  double decode_s_ = 0;
  double first_token_s_ = 0;
};

}  // namespace

int generate_batch(const GenerateArguments& arguments) { return BatchRun(arguments)(); }

}  // namespace adder::cli
