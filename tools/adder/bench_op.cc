// adder bench op: operations against their definitions, and against the clock.

#include "bench_op.h"

#include <fmt/format.h>

#include <memory>

#include "backend/make_backend.h"
#include "bench.h"
#include "bench/op_benchmark.h"
#include "bench_report.h"
#include "tuning.h"

namespace adder::cli {
namespace {

Json describe(std::string_view op, const bench::Measurement& measurement,
              const bench::MachinePeaks& peaks) {
  const bench::Timing& timing = measurement.timing;
  Json out = {{"op", op},
              {"shape", measurement.shape},
              {"median_s", timing.median_s},
              {"p10_s", timing.p10_s},
              {"p90_s", timing.p90_s},
              {"calls", timing.calls},
              {"bytes", measurement.bytes},
              {"flops", measurement.flops},
              {"gb_per_s", measurement.bytes / timing.median_s * 1e-9},
              {"gflop_per_s", measurement.flops / timing.median_s * 1e-9},
              {"error", measurement.error},
              {"allowed_error", measurement.allowed_error}};
  add_bound(peaks, out);
  return out;
}

std::string table_of(const Json& results) {
  Table table({"shape", "median", "p10", "p90", "GB/s", "GFLOP/s", "of bound", "error"});
  for (const Json& result : results) {
    table.add({result["shape"], human_seconds(result["median_s"]), human_seconds(result["p10_s"]),
               human_seconds(result["p90_s"]), human_number(result["gb_per_s"]),
               human_number(result["gflop_per_s"]), bound_cell(result),
               fmt::format("{:.1e}", result["error"].get<double>())});
  }
  return table.text();
}

int run(const BenchOpOptions& options) {
  if (const auto index = cuda_index(options.device)) return bench_op_on_device(options, *index);
  check(options.shape.empty(), "bench op: --shape is given, expected it with --device cuda only");
  check(options.tuning.empty(), "bench op: --tuning is given, expected it with --device cuda only");
  const std::vector<bench::OpBenchmark> ops = chosen(bench::op_benchmarks(), options.names, "");
  ThreadPool pool(options.nthreads);
  const bench::MachinePeaks peaks = bench::measure_machine(pool);
  Json report = report_header("op", peaks);
  report["results"] = Json::array();
  const bool quiet = options.json == "-";
  if (!quiet) print(peaks_table(peaks));
  for (const bench::OpBenchmark& op : ops) {
    if (!quiet) print(fmt::format("\n{}: {}\n", op.name, op.description));
    Json results = Json::array();
    for (const bench::Measurement& measurement : op.run(pool, options.seconds)) {
      results.push_back(describe(op.name, measurement, peaks));
    }
    if (!quiet) print(table_of(results));
    report["results"].insert(report["results"].end(), results.begin(), results.end());
  }
  if (!options.json.empty()) save_json(options.json, report);
  return 0;
}

}  // namespace

Command add_bench_op(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("op", "Time operations over a grid of shapes");
  app->footer(
      "Every result is compared with the operation's float64 definition before it is timed.\n\n"
      "Examples:\n"
      "  adder bench op all\n"
      "  adder bench op linear rms_norm --seconds 1 -t 1\n"
      "  adder bench op causal_conv1d --device cuda --shape bf16 --json result.json");
  auto options = std::make_shared<BenchOpOptions>();
  app->add_option("NAME", options->names, "Operations, or all (the default)");
  app->add_option("--seconds", options->seconds, "Time to spend on each shape (default: 0.2)")
      ->option_text("S")
      ->check(real_number(0.001, 3600));
  add_device_to(*app, options->device);
  app->add_option("--shape", options->shape,
                  "Only shapes whose description contains this text (with --device cuda)")
      ->option_text("TEXT");
  add_tuning_to(*app, options->tuning);
  add_threads_to(*app, options->nthreads);
  add_json_file_to(*app, options->json);
  return {app, [options] { return run(*options); }};
}

}  // namespace adder::cli
