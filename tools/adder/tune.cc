// adder tune: measures the ways to compute an operation on this GPU, shape by shape, and keeps the
// fastest of each in a file that other commands go by.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "adder/tuning.h"
#include "backend/make_backend.h"
#include "bench/device_benchmark.h"
#include "bench_report.h"
#include "commands.h"
#include "core/check.h"
#include "process.h"
#include "progress.h"
#include "tune_report.h"
#include "tuning.h"

namespace adder::cli {
namespace {

struct Options {
  std::string device = "cuda";
  std::vector<std::string> shapes;
  bool grid = false;
  std::string file;
  double seconds = 0.5;
  double budget_seconds = std::numeric_limits<double>::infinity();
  std::string json;
  bool dry_run = false;
};

/// The benchmark's shapes that the options name, then the user's own, none twice.
std::vector<bench::DeviceTunable> selected(const Options& options) {
  std::vector<std::string> parts;  // of descriptions
  std::vector<bench::DeviceTunable> own;
  for (const std::string& text : options.shapes) {
    const bool is_own = text.find('=') != std::string::npos;  // which no description has
    if (is_own) {
      own.push_back(bench::device_tunable("ssd_forward", text));
    } else {
      parts.push_back(text);
    }
  }
  std::vector<bench::DeviceTunable> out;
  if (options.grid || own.empty() || !parts.empty()) out = bench::device_tunables();
  std::erase_if(out, [&](const bench::DeviceTunable& tunable) {
    return !parts.empty() && std::none_of(parts.begin(), parts.end(), [&](const auto& part) {
      return tunable.shape.find(part) != std::string::npos;
    });
  });
  out.insert(out.end(), own.begin(), own.end());
  std::set<std::string> known;
  std::erase_if(out, [&](const bench::DeviceTunable& tunable) {
    return !known.insert(tunable.operation + tunable.shape_key.dump()).second;
  });
  check(!out.empty(), "tune: no shape of the benchmark contains {}", fmt::join(parts, " or "));
  return out;
}

/// The file to keep results in; what cannot be added to is noticed before anything is measured.
std::filesystem::path file_to_write(const Options& options) {
  const auto path = options.file.empty() ? cuda::default_tuning_path()
                                         : std::optional(std::filesystem::path(options.file));
  check(
      path.has_value(),
      "tune: there is no default tuning file (ADDER_TUNING is none, or neither XDG_CACHE_HOME nor "
      "HOME is set), expected --file FILE");
  tune::update_tuning_file(*path, {});
  if (const auto text = tune::read_tuning_text(*path)) {
    cuda::TuningTable::parse(*text, path->string());
  }
  return *path;
}

int list_candidates(const std::vector<bench::DeviceTunable>& tunables, const Options& options) {
  Json results = Json::array();
  for (const bench::DeviceTunable& tunable : tunables) {
    Json result = {{"op", tunable.operation}, {"shape", tunable.shape}};
    const std::string reason = bench::why_not_measurable(tunable);
    if (options.json != "-") print(fmt::format("{}: {}\n", tunable.operation, tunable.shape));
    if (!reason.empty()) {
      result["skipped"] = reason;
      if (options.json != "-") print(fmt::format("  skipped: {}\n", reason));
      results.push_back(std::move(result));
      continue;
    }
    const char* remark = " (built in)";
    for (const bench::TuningCandidate& candidate : bench::candidates_of(tunable)) {
      result["candidates"].push_back({{"name", candidate.name}, {"choice", candidate.choice}});
      if (options.json != "-") print(fmt::format("  {}{}\n", candidate.name, remark));
      remark = "";
    }
    results.push_back(std::move(result));
  }
  if (!options.json.empty()) save_json(options.json, {{"schema", 1}, {"results", results}});
  return 0;
}

/// Measures shape after shape and keeps each result at once.
class Tuning {
 public:
  Tuning(const Options& options, std::vector<bench::DeviceTunable> tunables,
         std::filesystem::path file)
      : options_(options),
        tunables_(std::move(tunables)),
        file_(std::move(file)),
        device_(bench::device_model()) {}

  void run() {
    Progress progress("tune");
    for (std::size_t i = 0; i < tunables_.size(); ++i) {
      const bench::DeviceTunable& tunable = tunables_[i];
      const std::string reason =
          left_s() <= 0 ? "the time is spent" : bench::why_not_measurable(tunable);
      if (!reason.empty()) {
        skipped_.push_back({{"shape", tunable.shape}, {"reason", reason}});
        continue;
      }
      const auto report = [&](double part) {
        const auto count = static_cast<double>(tunables_.size());
        progress.update((static_cast<double>(i) + part) / count,
                        fmt::format("shape {} of {}", i + 1, tunables_.size()));
      };
      report(0);
      measure(tunable, tunables_.size() - i, report);
      if (InterruptGuard::interrupted()) return;
    }
  }

  const Json& results() const { return results_; }
  const Json& skipped() const { return skipped_; }

 private:
  double left_s() const { return options_.budget_seconds - watch_.seconds(); }

  void measure(const bench::DeviceTunable& tunable, std::size_t left,
               const std::function<void(double)>& report) {
    // Making the inputs and checking the results takes about as long as timing them.
    const double share_s = left_s() / static_cast<double>(left) / 2;
    const bench::TuningResult result =
        bench::measure_candidates(tunable, {.seconds = std::min(options_.seconds, share_s),
                                            .stop = InterruptGuard::interrupted,
                                            .progress = report});
    if (!result.complete) return;
    tune::update_tuning_file(file_, {entry_of(device_, tunable, result)});
    results_.push_back(describe(tunable, result));
    if (!stderr_is_terminal()) {
      fmt::print(stderr, "tune: {} of {}: {}\n", tunables_.size() - left + 1, tunables_.size(),
                 line_of(results_.back()));
    }
  }

  const Options& options_;
  std::vector<bench::DeviceTunable> tunables_;
  std::filesystem::path file_;
  cuda::DeviceModel device_;
  StopWatch watch_;
  Json results_ = Json::array();
  Json skipped_ = Json::array();
};

void show(const Json& report) {
  print(table_of(report["results"], report["summary"]));
  for (const Json& shape : report["skipped"]) {
    print(fmt::format("Skipped: {}: {}.\n", shape["shape"].get<std::string>(),
                      shape["reason"].get<std::string>()));
  }
  print(fmt::format("{} of {} shapes are in {}.\n", report["results"].size(),
                    report["selected"].get<std::size_t>(), report["file"].get<std::string>()));
}

int run(const Options& options) {
  const std::optional<int> index = cuda_index(options.device);
  bench::select_device(index.value_or(0));
  std::vector<bench::DeviceTunable> tunables = selected(options);
  if (options.dry_run) return list_candidates(tunables, options);
  const std::filesystem::path file = file_to_write(options);
  Json report = report_header("tune", bench::measure_device());
  report["file"] = file.string();
  report["selected"] = tunables.size();

  const InterruptGuard guard;
  Tuning tuning(options, std::move(tunables), file);
  tuning.run();
  report["summary"] = summary_of(tuning.results());
  report["skipped"] = tuning.skipped();
  report["results"] = tuning.results();
  if (options.json != "-") show(report);
  if (!options.json.empty()) save_json(options.json, report);
  const std::vector<std::string> wrong = wrong_candidates(tuning.results());
  check(wrong.empty(),
        "tune: {} candidates differ from the built-in choice by more than rounding and were left "
        "out: {}",
        wrong.size(), fmt::join(wrong, "; "));
  return InterruptGuard::interrupted() ? InterruptGuard::exit_code() : 0;
}

/// "cuda" or "cuda:N".
CLI::Validator cuda_device_name() {
  CLI::Validator out;
  out.operation([](std::string& text) -> std::string {
    if (cuda_index(text).value_or(-1) >= 0) return {};
    return fmt::format("found '{}', expected cuda or cuda:N", text);
  });
  return out;
}

}  // namespace

Command add_tune(CLI::App& root) {
  CLI::App* app = root.add_subcommand("tune", "Find the fastest kernels for this GPU");
  app->footer(
      "Each way to compute ssd_forward is compared with the built-in one and then timed, shape by\n"
      "shape. What was fastest goes into a file at once, which other commands on this kind of GPU\n"
      "go by from then on. A shape of your own is written like seqlen=3000,nheads=80,headdim=64,\n"
      "dstate=128 (in one word), with batch, ngroups, dtype=bf16|f16|f32, allow_tf32, packed and\n"
      "gated if need be.\n\n"
      "Examples:\n"
      "  adder tune                              the shapes of the benchmark\n"
      "  adder tune --shape 'dstate 128' --budget-seconds 60\n"
      "  adder tune --shape batch=8,seqlen=2048,nheads=80,headdim=64,dstate=128\n"
      "  adder tune --dry-run                    what would be measured");
  auto options = std::make_shared<Options>();
  app->add_option("--device", options->device,
                  "cuda (default), or cuda:N for the GPU of that number")
      ->option_text("DEVICE")
      ->check(cuda_device_name());
  app->add_option("--shape", options->shapes,
                  "A shape of your own, or those of the benchmark whose description contains this "
                  "text; may be repeated")
      ->option_text("TEXT")
      ->expected(1)
      ->take_all();
  app->add_flag("--grid", options->grid,
                "All shapes of the benchmark (the default without --shape), besides your own");
  app->add_option(
         "--file", options->file,
         "The file to keep results in (default: $ADDER_TUNING, or adder/tuning.json in the "
         "folder for caches)")
      ->option_text("FILE");
  app->add_option("--seconds", options->seconds,
                  "Time to spend on the last comparison of each shape (default: 0.5)")
      ->option_text("S")
      ->check(real_number(0.001, 3600));
  app->add_option("--budget-seconds", options->budget_seconds,
                  "Begins no shape after this time, and spends less on each to get through "
                  "(default: no limit)")
      ->option_text("S")
      ->check(real_number(0.001, 1e9));
  add_json_file_to(*app, options->json);
  app->add_flag("--dry-run", options->dry_run,
                "Only lists the shapes and their candidates; measures and writes nothing");
  return {app, [options] { return run(*options); }};
}

}  // namespace adder::cli
