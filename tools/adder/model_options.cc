#include "model_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "arguments.h"
#include "core/check.h"
#include "process.h"
#include "progress.h"

namespace adder::cli {
namespace {

constexpr const char* kBundledModel = "models/books-11m";

std::filesystem::path bundled_model() {
  namespace fs = std::filesystem;
  std::vector<fs::path> candidates;
  const fs::path folder = executable_path().parent_path();
  if (!folder.empty()) {
    candidates.push_back(folder.parent_path() / "share/adder" / kBundledModel);  // PREFIX/bin
    candidates.push_back(folder.parent_path() / kBundledModel);                  // build
    candidates.push_back(folder.parent_path().parent_path() / kBundledModel);    // build/release
  }
  candidates.push_back(fs::path(".") / kBundledModel);
  std::vector<std::string> names;
  for (const fs::path& candidate : candidates) {
    std::error_code ignored;
    if (fs::exists(candidate / "config.json", ignored)) return candidate;
    names.push_back(candidate.string());
  }
  fail(
      "no model to work on: -m was not given, the environment variable ADDER_MODEL is not set, and "
      "the bundled model is not at {}",
      fmt::join(names, " or "));
}

}  // namespace

void ModelOptions::add_path_to(CLI::App& app) {
  app.add_option(
         "-m,--model", path,
         "Checkpoint: a folder with config.json and weights, a weight file in it, or a GGUF "
         "file (default: the bundled model)")
      ->option_text("DIR|FILE");
}

void ModelOptions::add_to(CLI::App& app) {
  add_path_to(app);
  app.add_option(
         "--device", device,
         "Where the model runs: cpu (default), cuda, or cuda:N for the device of that number")
      ->option_text("DEVICE")
      ->check(device_name());
  app.add_option(
         "--dtype", dtype,
         "Precision of the weights, and on a GPU of activations: f32 (weights as stored), bf16 "
         "or f16, or on the CPU int8 or int4 (default: f32)")
      ->option_text("TYPE")
      ->check(one_of({"f32", "bf16", "f16", "int8", "int4"}));
  app.add_option("--state-dtype", state_dtype,
                 "Precision that states of recurrences are held in: f32, or on a GPU bf16 "
                 "(default: f32)")
      ->option_text("TYPE")
      ->check(one_of({"f32", "bf16"}));
  app.add_option("--piece", piece_tokens,
                 "Tokens of a sequence that one pass over the model takes at most; 1 feeds a "
                 "text as decoding does (default: as many as suit the device)")
      ->option_text("TOKENS")
      ->check(whole_number(1));
  app.add_option("-t,--threads", nthreads, "Threads (default: all cores this process may use)")
      ->option_text("N")
      ->check(whole_number(0, 1024));
}

std::filesystem::path ModelOptions::resolved_path() const {
  if (!path.empty()) return path;
  if (const char* variable = std::getenv("ADDER_MODEL"); variable != nullptr && *variable != '\0') {
    return variable;
  }
  return bundled_model();
}

LoadOptions ModelOptions::load_options() const {
  return {.device = device,
          .dtype = dtype,
          .state_dtype = state_dtype,
          .piece_tokens = piece_tokens,
          .nthreads = nthreads,
          .progress = {}};
}

Model ModelOptions::load() const {
  Progress bar("loading the model");
  LoadOptions options = load_options();
  options.progress = [&bar](double fraction) { bar.update(fraction); };
  return Model::load(resolved_path(), options);
}

}  // namespace adder::cli
