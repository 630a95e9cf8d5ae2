// adder bench op --device cuda: the same on a CUDA device.

#include <fmt/format.h>

#include "bench/device_benchmark.h"
#include "bench/device_tuner.h"
#include "bench_op.h"
#include "bench_report.h"
#include "tuning.h"

namespace adder::cli {
namespace {

Json describe(std::string_view op, const bench::DeviceCase& shape,
              const bench::DeviceMeasurement& measurement, const bench::DevicePeaks& peaks) {
  const bench::Timing& timing = measurement.device;
  Json out = {{"op", op},
              {"shape", shape.shape},
              {"median_s", timing.median_s},
              {"p10_s", timing.p10_s},
              {"p90_s", timing.p90_s},
              {"calls", timing.calls},
              {"copies", measurement.copies},
              {"wall_s", measurement.wall.median_s},
              {"bytes", shape.bytes},
              {"flops", shape.flops},
              {"gb_per_s", shape.bytes / timing.median_s * 1e-9},
              {"gflop_per_s", shape.flops / timing.median_s * 1e-9},
              {"error", measurement.error},
              {"allowed_error", shape.allowed_error}};
  if (!measurement.choice.empty()) {
    out["choice"] = measurement.choice;
    out["tuned"] = measurement.tuned;
  }
  add_bound(peaks, out);
  return out;
}

std::string table_of(const Json& results) {
  Table table({"shape", "median", "p10", "p90", "wall", "GB/s", "TFLOP/s", "of bound", "error"});
  for (const Json& result : results) {
    table.add({result["shape"], human_seconds(result["median_s"]), human_seconds(result["p10_s"]),
               human_seconds(result["p90_s"]), human_seconds(result["wall_s"]),
               human_number(result["gb_per_s"]),
               human_number(result["gflop_per_s"].get<double>() * 1e-3), bound_cell(result),
               fmt::format("{:.1e}", result["error"].get<double>())});
  }
  return table.text();
}

// Only the shapes that contain `text`, and the operations that have any.
std::vector<bench::DeviceOpBenchmark> with_shape(std::vector<bench::DeviceOpBenchmark> ops,
                                                 const std::string& text) {
  for (bench::DeviceOpBenchmark& op : ops) {
    std::erase_if(op.cases, [&](const bench::DeviceCase& shape) {
      return shape.shape.find(text) == std::string::npos;
    });
  }
  std::erase_if(ops, [](const bench::DeviceOpBenchmark& op) { return op.cases.empty(); });
  check(!ops.empty(), "bench op: no shape of these operations contains '{}'", text);
  return ops;
}

}  // namespace

int bench_op_on_device(const BenchOpOptions& options, int index) {
  bench::select_device(index);
  const std::vector<bench::DeviceOpBenchmark> ops = with_shape(
      chosen(bench::device_op_benchmarks(), options.names, " for CUDA devices"), options.shape);
  const Json tuning = install_tuning_file(options.tuning, bench::device_model());
  const bench::DevicePeaks peaks = bench::measure_device();
  Json report = report_header("op", peaks);
  report["tuning"] = tuning;
  report["results"] = Json::array();
  const bool quiet = options.json == "-";
  if (!quiet) print(peaks_table(peaks));
  for (const bench::DeviceOpBenchmark& op : ops) {
    if (!quiet) print(fmt::format("\n{}: {}\n", op.name, op.description));
    Json results = Json::array();
    for (const bench::DeviceCase& shape : op.cases) {
      const auto measurement = bench::measure(op.name, shape, options.seconds);
      results.push_back(describe(op.name, shape, measurement, peaks));
    }
    if (!quiet) print(table_of(results));
    report["results"].insert(report["results"].end(), results.begin(), results.end());
  }
  if (!options.json.empty()) save_json(options.json, report);
  return 0;
}

}  // namespace adder::cli
