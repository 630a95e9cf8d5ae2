#include "ops/ssd_forward/tuning.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <numeric>
#include <shared_mutex>

namespace adder::cuda {
namespace {

/// Same but for the length.
bool same_class(SsdForwardShape a, const SsdForwardShape& b) {
  a.seqlen = b.seqlen;
  return a == b;
}

/// The table in use. Readers hold the lock while they read, so that the one before goes as soon as
/// nobody uses it; without a table they do not even take it.
struct Installed {
  std::atomic<bool> any{false};
  std::shared_mutex mutex;
  std::shared_ptr<const SsdForwardTuning> tuning;
};

Installed& installed() {
  static Installed instance;
  return instance;
}

}  // namespace

std::optional<SsdForwardShape> shape_of(const SsdForwardArgs& args) {
  if (args.seq_idx.defined()) return {};
  const bool packed = args.cu_seqlens.defined();
  return SsdForwardShape{.dtype = args.x.dtype,
                         .allow_tf32 = args.allow_tf32 && args.x.dtype == DType::f32,
                         .packed = packed,
                         .gated = args.z.defined(),
                         .batch = packed ? args.cu_seqlens.dim(0) - 1 : args.x.dim(0),
                         .nheads = args.x.dim(2),
                         .ngroups = args.B.dim(2),
                         .headdim = args.x.dim(3),
                         .dstate = args.B.dim(3),
                         .seqlen = args.x.dim(1)};
}

void SsdForwardTuning::add(const DeviceModel& device, const SsdForwardShape& shape,
                           const SsdForwardChoice& choice) {
  auto found = std::find_if(devices_.begin(), devices_.end(),
                            [&](const auto& entry) { return entry.first == device; });
  if (found == devices_.end()) found = devices_.emplace(devices_.end(), device, Choices{});
  found->second.insert_or_assign(shape, choice);
}

std::size_t SsdForwardTuning::size() const {
  return std::accumulate(
      devices_.begin(), devices_.end(), std::size_t{0},
      [](std::size_t sum, const auto& entry) { return sum + entry.second.size(); });
}

const SsdForwardTuning::Choices* SsdForwardTuning::choices_for(const DeviceModel& device) const {
  for (const auto& [model, choices] : devices_) {
    if (model == device) return &choices;
  }
  return nullptr;
}

const SsdForwardChoice* SsdForwardTuning::find(const DeviceModel& device,
                                               const SsdForwardShape& shape) const {
  const Choices* choices = choices_for(device);
  if (choices == nullptr) return nullptr;
  const auto above = choices->lower_bound(shape);
  if (above != choices->end() && above->first == shape) return &above->second;
  const bool has_above = above != choices->end() && same_class(above->first, shape);
  const auto below = above == choices->begin() ? choices->end() : std::prev(above);
  const bool has_below = below != choices->end() && same_class(below->first, shape);

  if (has_below && has_above && below->second == above->second &&
      above->first.seqlen <= 4 * below->first.seqlen) {
    return &below->second;
  }
  const auto distance = [&](bool has, const auto& entry) {
    const std::int64_t apart = has ? std::abs(entry->first.seqlen - shape.seqlen) : 0;
    const bool near = has && apart <= entry->first.seqlen / 8;
    return near ? static_cast<double>(apart) / static_cast<double>(entry->first.seqlen) : 1.0;
  };
  const double to_below = distance(has_below, below);
  const double to_above = distance(has_above, above);
  if (std::min(to_below, to_above) == 1.0) return nullptr;
  return to_below <= to_above ? &below->second : &above->second;
}

void install_ssd_forward_tuning(std::shared_ptr<const SsdForwardTuning> tuning) {
  Installed& now = installed();
  std::unique_lock lock(now.mutex);
  now.tuning.swap(tuning);
  now.any = now.tuning != nullptr && now.tuning->size() > 0;
  lock.unlock();  // what was there before goes without it
}

std::optional<SsdForwardChoice> installed_ssd_forward_choice(const DeviceModel& device,
                                                             const SsdForwardArgs& args) {
  Installed& now = installed();
  if (!now.any.load(std::memory_order_relaxed)) return {};
  const std::optional<SsdForwardShape> shape = shape_of(args);
  if (!shape) return {};
  const std::shared_lock lock(now.mutex);
  const SsdForwardChoice* found =
      now.tuning == nullptr ? nullptr : now.tuning->find(device, *shape);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

}  // namespace adder::cuda
