#pragma once

// What `adder bench op` shares between the CPU and other devices.

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"

namespace adder::cli {

struct BenchOpOptions {
  std::vector<std::string> names = {"all"};
  std::string device = "cpu";
  std::string shape;  ///< only shapes that contain this text
  double seconds = 0.2;
  int nthreads = 0;
  std::string json;
  std::string tuning;  ///< file, see tuning.h
};

/// Those of `all` that the user named. `where` completes "there is no operation 'x'".
template <typename Benchmark>
std::vector<Benchmark> chosen(std::vector<Benchmark> all, const std::vector<std::string>& names,
                              std::string_view where) {
  if (names == std::vector<std::string>{"all"}) return all;
  std::vector<Benchmark> out;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Benchmark& op) { return op.name == name; });
    if (found == all.end()) {
      std::vector<std::string_view> known;
      known.reserve(all.size());
      for (const Benchmark& op : all) known.push_back(op.name);
      fail("bench op: there is no operation '{}'{}, expected all or some of {}", name, where,
           fmt::join(known, ", "));
    }
    out.push_back(*found);
  }
  return out;
}

/// Runs the benchmarks on CUDA device `index`; returns the exit code.
int bench_op_on_device(const BenchOpOptions& options, int index);

}  // namespace adder::cli
