#include "bench_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "arguments.h"
#include "version.h"

namespace adder::cli {
namespace {

std::string system_name() {
  struct utsname name {};
  if (uname(&name) != 0) return "unknown";
  return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
}

/// The memory that `bytes` of repeatedly used data stay in: its name and its rate.
std::pair<std::string_view, double> memory_of(const bench::MachinePeaks& peaks, double bytes) {
  const auto l2_bytes = static_cast<double>(sysconf(_SC_LEVEL2_CACHE_SIZE)) * peaks.nthreads;
  const auto l3_bytes = static_cast<double>(sysconf(_SC_LEVEL3_CACHE_SIZE));
  if (peaks.l2_read_bytes > 0 && bytes <= l2_bytes) return {"L2", peaks.l2_read_bytes};
  if (peaks.l3_read_bytes > 0 && bytes <= l3_bytes) return {"L3", peaks.l3_read_bytes};
  return {"DRAM", peaks.dram_read_bytes};
}

Json common_header(const std::string& kind, Json machine) {
  return {{"schema", 1},
          {"kind", kind},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"adder", {{"version", version()}, {"commit", commit()}, {"compiler", compiler()}}},
          {"machine", std::move(machine)}};
}

void add_bound_to(const Bound& bound, Json& result) {
  result["bound"] = bound.limit;
  result["percent_of_bound"] = 100 * bound.seconds / result["median_s"].get<double>();
}

/// "13.0" for 13000, as CUDA numbers its versions.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

void add_threads_to(CLI::App& app, int& nthreads) {
  app.add_option("-t,--threads", nthreads, "Threads (default: all cores this process may use)")
      ->option_text("N")
      ->check(whole_number(0, 1024));
}

void add_json_file_to(CLI::App& app, std::string& file) {
  app.add_option("--json", file, "Write the results to a file; - prints them instead of the tables")
      ->option_text("FILE");
}

void add_device_to(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "cpu (default), cuda, or cuda:N for the device of that number")
      ->option_text("DEVICE")
      ->check(device_name());
}

Json report_header(const std::string& kind, const bench::MachinePeaks& peaks) {
  return common_header(kind, {{"cpu", peaks.cpu},
                              {"cores", std::thread::hardware_concurrency()},
                              {"system", system_name()},
                              {"tier", name_of(peaks.tier)},
                              {"threads", peaks.nthreads},
                              {"fma_gflop_per_s", peaks.fma_flops * 1e-9},
                              {"linear_gflop_per_s", peaks.linear_flops * 1e-9},
                              {"bf16_gflop_per_s", peaks.bf16_flops * 1e-9},
                              {"linear_bf16_gflop_per_s", peaks.linear_bf16_flops * 1e-9},
                              {"int8_gop_per_s", peaks.int8_flops * 1e-9},
                              {"linear_int8_gop_per_s", peaks.linear_int8_flops * 1e-9},
                              {"l2_read_gb_per_s", peaks.l2_read_bytes * 1e-9},
                              {"l3_read_gb_per_s", peaks.l3_read_bytes * 1e-9},
                              {"dram_read_gb_per_s", peaks.dram_read_bytes * 1e-9},
                              {"dram_copy_gb_per_s", peaks.dram_copy_bytes * 1e-9}});
}

Json report_header(const std::string& kind, const bench::DevicePeaks& peaks) {
  Json out = common_header(kind, {{"cpu", bench::cpu_name()},
                                  {"cores", std::thread::hardware_concurrency()},
                                  {"system", system_name()}});
  out["device"] = {{"name", peaks.name},
                   {"index", peaks.index},
                   {"compute_capability", fmt::format("{:.1f}", peaks.compute_capability * 0.1)},
                   {"multiprocessors", peaks.multiprocessors},
                   {"memory_bytes", peaks.memory_bytes},
                   {"l2_bytes", peaks.l2_bytes},
                   {"driver", cuda_version(peaks.driver_version)},
                   {"runtime", cuda_version(peaks.runtime_version)},
                   {"copy_gb_per_s", peaks.copy_bytes * 1e-9},
                   {"matrix_tflop_per_s", peaks.matrix_flops * 1e-12},
                   {"matrix_instruction", peaks.matrix_instruction}};
  return out;
}

std::string thread_count(int nthreads) {
  return fmt::format("{} thread{}", nthreads, nthreads == 1 ? "" : "s");
}

std::string peaks_table(const bench::MachinePeaks& peaks) {
  const auto rate = [](double value) {
    return value > 0 ? human_number(value * 1e-9) : std::string("-");
  };
  Table table(
      {fmt::format("{}, {}, {}", peaks.cpu, name_of(peaks.tier), thread_count(peaks.nthreads)),
       "rate", "unit"});
  table.add({"f32 multiply-add, in registers", rate(peaks.fma_flops), "GFLOP/s"});
  table.add({"f32 matrix product 256 x 768 x 768", rate(peaks.linear_flops), "GFLOP/s"});
  table.add({"bf16 multiply-add, in registers", rate(peaks.bf16_flops), "GFLOP/s"});
  table.add({"bf16 matrix product", rate(peaks.linear_bf16_flops), "GFLOP/s"});
  table.add({"int8 multiply-add, in registers", rate(peaks.int8_flops), "GOP/s"});
  table.add({"int8 matrix product", rate(peaks.linear_int8_flops), "GOP/s"});
  table.add({"L2 read", rate(peaks.l2_read_bytes), "GB/s"});
  table.add({"L3 read", rate(peaks.l3_read_bytes), "GB/s"});
  table.add({"DRAM read", rate(peaks.dram_read_bytes), "GB/s"});
  table.add({"DRAM copy, read + written", rate(peaks.dram_copy_bytes), "GB/s"});
  return table.text();
}

std::string peaks_table(const bench::DevicePeaks& peaks) {
  Table table({fmt::format("{}, {} multiprocessors, driver {}, runtime {}", peaks.name,
                           peaks.multiprocessors, cuda_version(peaks.driver_version),
                           cuda_version(peaks.runtime_version)),
               "rate", "unit"});
  table.add({"memory copy, read + written", human_number(peaks.copy_bytes * 1e-9), "GB/s"});
  table.add({fmt::format("bf16 matrix product ({})", peaks.matrix_instruction),
             human_number(peaks.matrix_flops * 1e-12), "TFLOP/s"});
  return table.text();
}

Bound bound_of(const bench::MachinePeaks& peaks, double flops, double bytes, WeightFormat format) {
  const auto [memory, rate] = memory_of(peaks, bytes);
  const double memory_s = bytes / rate;
  const double arithmetic_s = flops / peaks.flops_of(format);
  if (memory_s > arithmetic_s) return {memory, memory_s};
  return {"arithmetic", arithmetic_s};
}

Bound bound_of(const bench::DevicePeaks& peaks, double flops, double bytes) {
  const double copy_s = bytes / peaks.copy_bytes;
  const double matrix_s = flops / peaks.matrix_flops;
  if (copy_s > matrix_s) return {"copy", copy_s};
  return {"matrix", matrix_s};
}

void add_bound(const bench::MachinePeaks& peaks, Json& result, WeightFormat format) {
  add_bound_to(bound_of(peaks, result["flops"], result["bytes"], format), result);
}

void add_bound(const bench::DevicePeaks& peaks, Json& result, WeightFormat) {
  add_bound_to(bound_of(peaks, result["flops"], result["bytes"]), result);
}

std::string bound_cell(const Json& result) {
  return fmt::format("{:.1f} % {}", result["percent_of_bound"].get<double>(),
                     result["bound"].get<std::string>());
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                    : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    out += '\n';
  }
  return out;
}

}  // namespace adder::cli
