#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "adder/tuning.h"
#include "core/check.h"
#include "ops/ssd_forward/tuning.h"
#include "tune/tuning_file.h"

namespace adder::cuda {
namespace {

/// A value of the environment that is set and not empty.
const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

TuningTable::TuningTable() : ssd_forward_(std::make_shared<SsdForwardTuning>()) {}

TuningTable TuningTable::load(const std::filesystem::path& path) {
  const auto text = tune::read_tuning_text(path);
  check(text.has_value(), "cannot open {}: there is no such file", path.string());
  return parse(*text, path.string());
}

TuningTable TuningTable::parse(std::string_view text, std::string_view source) {
  auto ssd_forward = std::make_shared<SsdForwardTuning>();
  // Shapes as text, of each device in the order of their first entries.
  std::vector<std::pair<DeviceModel, std::set<std::string>>> current;
  std::vector<std::pair<DeviceModel, std::set<std::string>>> other;
  const auto shapes_of = [](auto& devices, const DeviceModel& device) -> std::set<std::string>& {
    auto found = std::find_if(devices.begin(), devices.end(),
                              [&](const auto& entry) { return entry.first == device; });
    if (found == devices.end()) found = devices.insert(devices.end(), {device, {}});
    return found->second;
  };
  std::size_t number = 0;
  for (const tune::TuningEntry& entry : tune::parse_tuning(text, source)) {
    ++number;
    if (entry.operation != "ssd_forward") continue;  // of a later version of this library
    if (entry.kernel_version != kSsdForwardKernelVersion) {
      shapes_of(other, entry.device).insert(entry.shape.dump());
      continue;
    }
    shapes_of(current, entry.device).insert(entry.shape.dump());
    const std::string where = fmt::format("{}: entry {}", source, number);
    ssd_forward->add(entry.device, read_ssd_forward_shape(entry.shape, where + ": shape"),
                     read_ssd_forward_choice(entry.choice, where + ": choice"));
  }
  TuningTable out;
  out.ssd_forward_ = std::move(ssd_forward);
  for (const auto& [device, shapes] : other) {
    const std::set<std::string>& measured = shapes_of(current, device);
    const auto stale = std::count_if(shapes.begin(), shapes.end(), [&](const std::string& shape) {
      return !measured.contains(shape);
    });
    out.stale_.emplace_back(device, static_cast<std::size_t>(stale));
  }
  return out;
}

std::size_t TuningTable::size() const { return ssd_forward_->size(); }

std::size_t TuningTable::stale(const DeviceModel& device) const {
  for (const auto& [model, count] : stale_) {
    if (model == device) return count;
  }
  return 0;
}

std::optional<SsdForwardChoice> TuningTable::lookup(const DeviceModel& device,
                                                    const SsdForwardArgs& args) const {
  const auto shape = shape_of(args);
  const SsdForwardChoice* found = shape ? ssd_forward_->find(device, *shape) : nullptr;
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void install_tuning(const TuningTable& table) { install_ssd_forward_tuning(table.ssd_forward_); }

std::optional<std::filesystem::path> default_tuning_path() {
  if (const char* path = environment("ADDER_TUNING")) {
    return std::string_view(path) == "none" ? std::nullopt
                                            : std::optional(std::filesystem::path(path));
  }
  std::filesystem::path folder;
  if (const char* cache = environment("XDG_CACHE_HOME")) folder = cache;
  // The specification of that variable has relative paths ignored.
  if (!folder.is_absolute()) {
    const char* home = environment("HOME");
    if (home == nullptr) return {};
    folder = std::filesystem::path(home) / ".cache";
  }
  return folder / "adder" / "tuning.json";
}

}  // namespace adder::cuda
