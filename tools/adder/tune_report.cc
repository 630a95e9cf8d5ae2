#include "tune_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "bench_report.h"
#include "version.h"

namespace adder::cli {
namespace {

Json describe(const bench::CandidateResult& result) {
  const tune::CandidateTimes& times = result.times;
  Json out = {{"name", result.candidate.name},
              {"choice", result.candidate.choice},
              {"difference", result.difference},
              {"right", result.right},
              {"median_s", nullptr},
              {"p10_s", nullptr},
              {"p90_s", nullptr},
              {"runs", times.runs},
              {"finalist", times.finalist}};
  if (times.runs == 0) return out;
  out["median_s"] = times.median_s;
  out["p10_s"] = times.p10_s;
  out["p90_s"] = times.p90_s;
  return out;
}

/// A member of an object that may be a number or null.
std::string seconds_cell(const Json& value) {
  return value.is_null() ? "-" : human_seconds(value.get<double>());
}

}  // namespace

Json describe(const bench::DeviceTunable& tunable, const bench::TuningResult& result) {
  Json candidates = Json::array();
  for (const bench::CandidateResult& candidate : result.candidates) {
    candidates.push_back(describe(candidate));
  }
  const double built_in_s = result.candidates[0].times.median_s;
  const double best_s = result.candidates[result.best].times.median_s;
  return {{"op", tunable.operation},
          {"shape", tunable.shape},
          {"key", tunable.shape_key},
          {"kernel_version", tunable.kernel_version},
          {"built_in", candidates[0]["name"]},
          {"built_in_s", built_in_s},
          {"best", candidates[result.best]["name"]},
          {"best_s", best_s},
          {"loss_percent", 100 * (built_in_s / best_s - 1)},
          {"error", result.error},
          {"allowed_error", tunable.allowed_error},
          {"copies", result.copies},
          {"candidates", std::move(candidates)}};
}

tune::TuningEntry entry_of(const cuda::DeviceModel& device, const bench::DeviceTunable& tunable,
                           const bench::TuningResult& result) {
  const bench::CandidateResult& best = result.candidates[result.best];
  const bench::CandidateResult& built_in = result.candidates[0];
  return {.device = device,
          .operation = tunable.operation,
          .kernel_version = tunable.kernel_version,
          .shape = tunable.shape_key,
          .choice = best.candidate.choice,
          .measured = {{"median_s", best.times.median_s},
                       {"built_in", built_in.candidate.choice},
                       {"built_in_s", built_in.times.median_s},
                       {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
                       {"adder", version_line()}}};
}

Json summary_of(const Json& results) {
  Json out = {{"shapes", results.size()},
              {"max_loss_percent", nullptr},
              {"max_loss_shape", nullptr},
              {"mean_loss_percent", nullptr}};
  double sum = 0;
  for (const Json& result : results) {
    const double loss = result["loss_percent"];
    sum += loss;
    if (out["max_loss_percent"].is_null() || loss > out["max_loss_percent"].get<double>()) {
      out["max_loss_percent"] = loss;
      out["max_loss_shape"] = result["shape"];
    }
  }
  if (!results.empty()) out["mean_loss_percent"] = sum / static_cast<double>(results.size());
  return out;
}

std::string line_of(const Json& result) {
  const std::string best = result["best"];
  const std::string built_in =
      best == result["built_in"]
          ? "the built-in choice"
          : fmt::format("built-in {}, {:.3f} times that", seconds_cell(result["built_in_s"]),
                        1 + result["loss_percent"].get<double>() / 100);
  return fmt::format("{}: {}, {} ({})", result["shape"].get<std::string>(), best,
                     seconds_cell(result["best_s"]), built_in);
}

std::string table_of(const Json& results, const Json& summary) {
  if (results.empty()) return {};
  Table table({"shape", "built-in choice", "time", "best choice", "time", "gain"});
  for (const Json& result : results) {
    table.add({result["shape"], result["built_in"], seconds_cell(result["built_in_s"]),
               result["best"] == result["built_in"] ? "the same" : result["best"],
               seconds_cell(result["best_s"]),
               fmt::format("{:.3f} x", 1 + result["loss_percent"].get<double>() / 100)});
  }
  return table.text() +
         fmt::format(
             "\nBuilt-in choices take at most {:.1f} % longer than the best ones ({}), {:.1f} % on "
             "average.\n",
             summary["max_loss_percent"].get<double>(),
             summary["max_loss_shape"].get<std::string>(),
             summary["mean_loss_percent"].get<double>());
}

std::vector<std::string> wrong_candidates(const Json& results) {
  std::vector<std::string> out;
  for (const Json& result : results) {
    for (const Json& candidate : result["candidates"]) {
      if (candidate["right"].get<bool>()) continue;
      out.push_back(
          fmt::format("{} at {} (difference {:.3g})", candidate["name"].get<std::string>(),
                      result["shape"].get<std::string>(), candidate["difference"].get<double>()));
    }
  }
  return out;
}

}  // namespace adder::cli
