#pragma once

// What every benchmark's report begins with, the bounds that results are held against, and how
// tables look.

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/device_peaks.h"
#include "bench/machine.h"
#include "output.h"

namespace adder::cli {

/// -t, --json FILE and --device cpu|cuda[:N], as the benchmarks take them.
void add_threads_to(CLI::App& app, int& nthreads);
void add_json_file_to(CLI::App& app, std::string& file);
void add_device_to(CLI::App& app, std::string& device);

/// {"schema", "kind", "date", "adder": {...}, "machine": {...}}: see docs/benchmarks.md.
Json report_header(const std::string& kind, const bench::MachinePeaks& peaks);
/// The same with less of "machine" and with "device": {...}.
Json report_header(const std::string& kind, const bench::DevicePeaks& peaks);

/// "1 thread", "2 threads".
std::string thread_count(int nthreads);

/// The peaks as a table.
std::string peaks_table(const bench::MachinePeaks& peaks);
std::string peaks_table(const bench::DevicePeaks& peaks);

/// The least time that some work can take here, and what keeps it from being less: "arithmetic",
/// or the memory that holds `bytes`: "L2", "L3" or "DRAM". Arithmetic is that of weights in
/// `format`.
struct Bound {
  std::string_view limit;
  double seconds = 0;
};
Bound bound_of(const bench::MachinePeaks& peaks, double flops, double bytes,
               WeightFormat format = WeightFormat::f32);

/// On a device: "copy" or "matrix".
Bound bound_of(const bench::DevicePeaks& peaks, double flops, double bytes);

/// Adds "bound" and "percent_of_bound" to a result that has "flops", "bytes" and "median_s".
void add_bound(const bench::MachinePeaks& peaks, Json& result,
               WeightFormat format = WeightFormat::f32);
void add_bound(const bench::DevicePeaks& peaks, Json& result,
               WeightFormat format = WeightFormat::f32);

/// "87 % DRAM"
std::string bound_cell(const Json& result);

/// Columns padded to the widest cell, the first one to the left and the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { add(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace adder::cli
