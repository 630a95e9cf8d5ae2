// adder bench model: loading, prefill and decoding of a whole model.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "adder/model.h"
#include "backend/make_backend.h"
#include "bench.h"
#include "bench/device_benchmark.h"
#include "bench_model_batch.h"
#include "bench_report.h"
#include "model_options.h"
#include "process.h"
#include "progress.h"

namespace adder::cli {
namespace {

constexpr std::int64_t kFirstPromptTokens = 16;
constexpr std::int64_t kPieceTokens = 8192;
constexpr std::int64_t kTurnTokens = 16;
// A device hands tokens out as they come, but whoever waits for them looks now and then, so single
// ones have no time of their own.
constexpr std::int64_t kMostDeviceTurnTokens = 128;
constexpr std::int64_t kDeviceTurns = 8;

struct Options {
  ModelOptions model;
  std::string random;
  std::vector<std::int64_t> prefill = {512, 2048};
  std::int64_t decode = 64;
  std::vector<std::int64_t> batch;
  std::int64_t position = 0;
  int repeat = 3;
  std::string json;
};

/// The value at `fraction` of the sorted samples.
double quantile(std::vector<double> samples, double fraction) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<std::size_t>(fraction * static_cast<double>(samples.size() - 1))];
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options), model_(load()), load_s_(watch_.seconds()) {}

  int operator()() {
    measure_first_token();
    Json results = {{"load_s", load_s_}, {"first_token_s", first_token_s_}};
    results["prefill"] = Json::array();
    for (std::int64_t tokens : options_.prefill) results["prefill"].push_back(prefill(tokens));
    results["decode"] = decode();
    for (std::int64_t size : options_.batch) results["decode"].push_back(decode_together(size));
    results["peak_rss_bytes"] = peak_rss_bytes();
    // Last, since it takes memory of its own.
    if (device_) {
      bench::select_device(*device_);
      results["device_bytes"] = bench::device_bytes_in_use();
      finish(results, bench::measure_device());
    } else {
      ThreadPool pool(model_.nthreads());
      finish(results, bench::measure_machine(pool));
    }
    return 0;
  }

 private:
  template <typename Peaks>
  void finish(Json& results, const Peaks& peaks) const {
    for (const char* part : {"prefill", "decode"}) {
      for (Json& result : results[part]) add_bound(peaks, result, multiplied_format());
    }
    report(results, peaks);
  }

  /// What is multiplied: weights in 16 bits are widened, unless bf16 was asked for.
  WeightFormat multiplied_format() const {
    const WeightFormat format = model_.weight_format();
    return is_quantized(format) || options_.model.dtype == "bf16" ? format : WeightFormat::f32;
  }

  std::int64_t turn_tokens() const {
    if (!device_) return kTurnTokens;
    return std::clamp<std::int64_t>(options_.decode / kDeviceTurns, 1, kMostDeviceTurnTokens);
  }

  Model load() const {
    if (options_.random.empty()) return options_.model.load();
    Progress bar("making random weights");
    LoadOptions load_options = options_.model.load_options();
    load_options.progress = [&bar](double fraction) { bar.update(fraction); };
    return Model::random(options_.random, load_options);
  }

  /// Text does not matter for speed; the same tokens every time do for comparisons.
  std::vector<int> random_tokens(std::int64_t count) {
    std::uniform_int_distribution<int> id(0, static_cast<int>(model_.config().vocab_size) - 1);
    std::vector<int> out(static_cast<std::size_t>(count));
    std::generate(out.begin(), out.end(), [&] { return id(engine_); });
    return out;
  }

  /// Done before anything else, so that it counts from the start of the process.
  void measure_first_token() {
    Session session = model_.new_session();
    session.prefill(random_tokens(kFirstPromptTokens));
    session.generate({.max_tokens = 1, .sampling = {.temperature = 0}, .stop_at_eos = false})
        .begin();
    first_token_s_ = seconds_since_start();
  }

  /// Feeds `tokens` tokens from an empty state and computes the logits after the last one.
  Json prefill(std::int64_t tokens) {
    const std::vector<int> ids = random_tokens(tokens);
    Session session = model_.new_session();
    std::vector<double> samples;
    for (int i = 0; i < options_.repeat; ++i) {
      session.reset();
      const StopWatch watch;
      session.prefill(ids);
      session.logits();
      samples.push_back(watch.seconds());
    }
    const double median_s = quantile(samples, 0.5);
    const auto count = static_cast<double>(tokens);
    const ModelConfig& config = model_.config();
    const double head_flops = 2.0 * static_cast<double>(config.d_model * config.padded_vocab_size);
    const double flops = count * static_cast<double>(model_.flops_per_token()) + head_flops;
    return {{"tokens", tokens},
            {"median_s", median_s},
            {"p10_s", quantile(samples, 0.1)},
            {"p90_s", quantile(samples, 0.9)},
            {"tokens_per_s", count / median_s},
            {"flops", flops},
            {"bytes", 0},
            {"gflop_per_s", flops / median_s * 1e-9}};
  }

  void advance(Session& session, std::int64_t tokens) {
    Progress bar("feeding tokens");
    const StopWatch watch;
    for (std::int64_t fed = 0; fed < tokens;) {
      const auto count = std::min(tokens - fed, kPieceTokens);
      session.prefill(random_tokens(count));
      fed += count;
      bar.update(static_cast<double>(fed) / static_cast<double>(tokens),
                 token_note(fed, watch.seconds()));
    }
  }

  /// Decodes after the first prompt and, when asked for, after `--position` tokens. Both take turns
  /// at decoding, so that what else the machine does falls on both alike.
  Json decode() {
    std::vector<std::int64_t> positions = {kFirstPromptTokens};
    if (options_.position > 0) positions.push_back(options_.position);
    std::vector<Decoding> decodings;
    for (std::int64_t position : positions) {
      Session session = model_.new_session();
      advance(session, position);
      decodings.push_back({std::move(session), current_rss_bytes()});
    }
    for (std::int64_t done = 0; done < options_.decode; done += turn_tokens()) {
      const std::int64_t tokens = std::min(turn_tokens(), options_.decode - done);
      for (Decoding& decoding : decodings) take_turn(decoding, tokens);
    }
    Json out = Json::array();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      Json result = decode_result(1, decodings[i].samples);
      result["position"] = positions[i];
      result["rss_bytes"] = decodings[i].rss_bytes;
      if (device_) result["host_cpu"] = decodings[i].cpu_s / decodings[i].wall_s;
      out.push_back(std::move(result));
    }
    return out;
  }

  /// Many sequences, a token each a step, from an empty state.
  Json decode_together(std::int64_t size) const {
    Json result = decode_result(size, decode_batch(model_, size, options_.decode, turn_tokens()));
    result["position"] = 0;
    result["rss_bytes"] = current_rss_bytes();
    return result;
  }

  struct Decoding {
    Session session;
    std::int64_t rss_bytes;
    std::vector<double> samples = {};
    double wall_s = 0;  ///< of all samples, on a device
    double cpu_s = 0;   ///< the process's meanwhile
  };

  void take_turn(Decoding& decoding, std::int64_t tokens) const {
    // From the first token on: what comes before it, such as the start of a device's loop, is none
    // of them.
    const GenerateOptions greedy{
        .max_tokens = tokens + 1, .sampling = {.temperature = 0}, .stop_at_eos = false};
    Generation generation = decoding.session.generate(greedy);
    auto token = generation.begin();
    StopWatch watch;
    if (device_) {
      const double cpu_before = cpu_seconds();
      for (std::int64_t i = 0; i < tokens; ++i) ++token;
      const double seconds = watch.seconds();
      decoding.samples.push_back(seconds / static_cast<double>(tokens));
      decoding.wall_s += seconds;
      decoding.cpu_s += cpu_seconds() - cpu_before;
      return;
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      ++token;
      decoding.samples.push_back(watch.seconds());
      watch = {};
    }
  }

  /// Of a step of `batch` sequences, from seconds.
  Json decode_result(std::int64_t batch, const std::vector<double>& samples) const {
    const double median_s = quantile(samples, 0.5);
    const double mean_s =
        std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
    const double bytes = static_cast<double>(model_.bytes_per_token()) +
                         2 * static_cast<double>(batch * model_.state_bytes());
    return {{"batch", batch},
            {"tokens", options_.decode},
            {"median_s", median_s},
            {"mean_s", mean_s},
            {"p10_s", quantile(samples, 0.1)},
            {"p90_s", quantile(samples, 0.9)},
            {"tokens_per_s", static_cast<double>(batch) / median_s},
            {"flops", 0},
            {"bytes", bytes},
            {"gb_per_s", bytes / median_s * 1e-9}};
  }

  Json describe_model() const {
    return {{"name", options_.random.empty() ? options_.model.resolved_path().string()
                                             : "random " + options_.random},
            {"architecture", name_of(model_.config().architecture)},
            {"parameter_count", model_.parameter_count()},
            {"dtype", name_of(model_.weight_format())},
            {"state_dtype", name_of(model_.state_dtype())},
            {"bytes_per_token", model_.bytes_per_token()},
            {"flops_per_token", model_.flops_per_token()},
            {"state_bytes", model_.state_bytes()}};
  }

  template <typename Peaks>
  void report(const Json& results, const Peaks& peaks) const {
    if (options_.json != "-") print(peaks_table(peaks) + "\n" + table_of(results));
    if (options_.json.empty()) return;
    Json out = report_header("model", peaks);
    out["model"] = describe_model();
    out["results"] = results;
    save_json(options_.json, out);
  }

  std::string table_of(const Json& results) const {
    const Json model = describe_model();
    std::string out = fmt::format(
        "{}: {} parameters, {}, states {}, {}\n"
        "load {}, first token {} after the start\n",
        model["name"].get<std::string>(), grouped(model_.parameter_count()),
        name_of(model_.weight_format()), name_of(model_.state_dtype()),
        thread_count(model_.nthreads()), human_seconds(load_s_), human_seconds(first_token_s_));
    Table table({"", "tokens/s", "median", "p10", "p90", "of bound"});
    for (const Json& prefill : results["prefill"]) {
      table.add(row(fmt::format("prefill {}", grouped(prefill["tokens"])), prefill));
    }
    for (const Json& decode : results["decode"]) {
      table.add(row(name_of_decoding(decode), decode));
    }
    out += table.text();
    for (const Json& decode : results["decode"]) {
      if (decode["batch"] != 1) continue;
      out += fmt::format("memory at {}: {}\n", grouped(decode["position"]),
                         human_bytes(decode["rss_bytes"]));
      if (!device_) continue;
      out += fmt::format("processor time at {}: {:.1f} % of a core\n", grouped(decode["position"]),
                         1e2 * decode["host_cpu"].get<double>());
    }
    out += fmt::format("peak memory: {}\n", human_bytes(results["peak_rss_bytes"]));
    if (results.contains("device_bytes")) {
      out += fmt::format("memory of the device: {}\n", human_bytes(results["device_bytes"]));
    }
    return out;
  }

  static std::string name_of_decoding(const Json& decode) {
    if (decode["batch"] == 1) return fmt::format("decode at {}", grouped(decode["position"]));
    return fmt::format("decode {} together", grouped(decode["batch"]));
  }

  static std::vector<std::string> row(std::string name, const Json& result) {
    return {std::move(name),
            human_number(result["tokens_per_s"]),
            human_seconds(result["median_s"]),
            human_seconds(result["p10_s"]),
            human_seconds(result["p90_s"]),
            bound_cell(result)};
  }

  const Options& options_;
  const std::optional<int> device_ = cuda_index(options_.model.device);
  StopWatch watch_;
  Model model_;
  double load_s_;
  double first_token_s_ = 0;
  std::mt19937 engine_{1};
};

}  // namespace

Command add_bench_model(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("model", "Time loading, prefill and decoding of a model");
  app->footer(
      "Prefill is held against this machine's arithmetic, decoding against its memory, both "
      "measured\n"
      "in the same run; with --device cuda against those of the GPU.\n\n"
      "Examples:\n"
      "  adder bench model\n"
      "  adder bench model -m path/to/mamba2-130m --prefill 128,512,4096 --decode 128\n"
      "  adder bench model --random mamba2-370m --position 1000000 --json result.json\n"
      "  adder bench model --random mamba2-2.7b --device cuda --dtype bf16 --state-dtype bf16 "
      "--batch 16,64");
  auto options = std::make_shared<Options>();
  options->model.add_to(*app);
  app->add_option("--random", options->random,
                  "A model of this published shape with random weights, mamba2-130m for instance")
      ->option_text("SHAPE")
      ->excludes("--model");
  app->add_option("--prefill", options->prefill, "Prompt lengths (default: 512,2048)")
      ->option_text("N,N,...")
      ->delimiter(',')
      ->check(whole_number(1));
  app->add_option("--decode", options->decode, "Tokens to decode (default: 64)")
      ->option_text("N")
      ->check(whole_number(1));
  app->add_option("--batch", options->batch, "Decode so many sequences together, too")
      ->option_text("N,N,...")
      ->delimiter(',')
      ->check(whole_number(2, 4096));
  app->add_option("--position", options->position,
                  "Decode after this many tokens too, to show that speed and memory stay")
      ->option_text("N")
      ->check(whole_number(0));
  app->add_option("--repeat", options->repeat, "Runs of each prefill (default: 3)")
      ->option_text("N")
      ->check(whole_number(1, 1000));
  add_json_file_to(*app, options->json);
  return {app, [options] { return Run(*options)(); }};
}

}  // namespace adder::cli
