// adder bench machine: what this machine can do at most.

#include <memory>

#include "backend/make_backend.h"
#include "bench.h"
#include "bench/device_benchmark.h"
#include "bench_report.h"

namespace adder::cli {
namespace {

struct Options {
  std::string device = "cpu";
  double seconds = 0.25;
  int nthreads = 0;
  std::string json;
};

template <typename Peaks>
int report(const Options& options, const Peaks& peaks) {
  if (options.json != "-") print(peaks_table(peaks));
  if (!options.json.empty()) save_json(options.json, report_header("machine", peaks));
  return 0;
}

int run(const Options& options) {
  if (const auto index = cuda_index(options.device)) {
    bench::select_device(*index);
    return report(options, bench::measure_device(options.seconds));
  }
  ThreadPool pool(options.nthreads);
  return report(options, bench::measure_machine(pool, options.seconds));
}

}  // namespace

Command add_bench_machine(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("machine", "Measure this machine's peaks");
  app->footer(
      "These are the bounds that the other benchmarks are held against.\n\n"
      "Examples:\n"
      "  adder bench machine -t 1\n"
      "  adder bench machine --device cuda");
  auto options = std::make_shared<Options>();
  app->add_option("--seconds", options->seconds, "Time to spend on each figure (default: 0.25)")
      ->option_text("S")
      ->check(real_number(0.001, 3600));
  add_device_to(*app, options->device);
  add_threads_to(*app, options->nthreads);
  add_json_file_to(*app, options->json);
  return {app, [options] { return run(*options); }};
}

}  // namespace adder::cli
