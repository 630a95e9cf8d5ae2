#include "tuning.h"

#include <fmt/format.h>

#include "adder/error.h"
#include "adder/tuning.h"

namespace adder::cli {
namespace {

void note(const std::string& text) { fmt::print(stderr, "adder: note: {}\n", text); }

/// The table; nothing if the default file is missing or none.
std::optional<cuda::TuningTable> load(const std::string& option,
                                      const std::filesystem::path& path) {
  if (!option.empty()) return cuda::TuningTable::load(path);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  try {
    return cuda::TuningTable::load(path);
  } catch (const Error& problem) {
    note(fmt::format("{}; built-in choices are used", problem.what()));
    return {};
  }
}

}  // namespace

void add_tuning_to(CLI::App& app, std::string& file) {
  app.add_option("--tuning", file,
                 "Choices of kernels that `adder tune` has measured, or none for the built-in ones "
                 "(default: $ADDER_TUNING or adder/tuning.json in the folder for caches, if it is "
                 "there)")
      ->option_text("FILE");
}

std::optional<std::filesystem::path> tuning_path(const std::string& option) {
  if (option.empty()) return cuda::default_tuning_path();
  return option == "none" ? std::nullopt : std::optional(std::filesystem::path(option));
}

Json install_tuning_file(const std::string& option, const cuda::DeviceModel& device) {
  const auto path = tuning_path(option);
  const auto table = path ? load(option, *path) : std::nullopt;
  if (!table) return nullptr;
  cuda::install_tuning(*table);
  if (const std::size_t stale = table->stale(device)) {
    note(
        fmt::format("{} of the shapes in {} were measured with another version of the kernels and "
                    "are ignored; `adder tune` measures them anew",
                    stale, path->string()));
  }
  return {{"file", path->string()}, {"shapes", table->size()}};
}

}  // namespace adder::cli
