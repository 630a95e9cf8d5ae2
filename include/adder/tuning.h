#pragma once

// Choices of CUDA kernels that were measured on a kind of device (`adder tune`), in place of the
// built-in ones. The library reads no file by itself: a program that wants measured choices says
//
//   if (const auto path = adder::cuda::default_tuning_path(); path &&
//   std::filesystem::exists(*path))
//     adder::cuda::install_tuning(adder::cuda::TuningTable::load(*path));
//
// Everything here works without a device too, and in a library built without CUDA.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "adder/cuda_device.h"
#include "adder/ops/ssd_forward/ssd_forward.h"

namespace adder::cuda {

class SsdForwardTuning;

/// What a tuning file says that this version of the kernels can go by. A value, never changed.
class TuningTable {
 public:
  /// Knows nothing.
  TuningTable();

  /// Reads a file. It may be replaced meanwhile: readers see the old one or the new one. Throws
  /// adder::Error, which names the file and the entry, if it cannot be read, is not a tuning file,
  /// or holds a choice or shape for these kernels that is none.
  static TuningTable load(const std::filesystem::path& path);
  /// The same from memory; `source` names it in errors.
  static TuningTable parse(std::string_view text, std::string_view source);

  /// Measured shapes, of all operations and devices.
  std::size_t size() const;
  /// Shapes on this kind of device that were measured with another version of the kernels only:
  /// they are ignored.
  std::size_t stale(const DeviceModel& device) const;

  /// The choice for a call with valid arguments (on whatever device), if the table has one for such
  /// a shape on such a device or for one of almost the same length. It may be one that the
  /// arguments do not allow; choose_ssd_forward sees to that.
  std::optional<SsdForwardChoice> lookup(const DeviceModel& device,
                                         const SsdForwardArgs& args) const;

 private:
  friend void install_tuning(const TuningTable& table);

  std::shared_ptr<const SsdForwardTuning> ssd_forward_;
  std::vector<std::pair<DeviceModel, std::size_t>> stale_;
};

/// Makes the table the one that operations consult in the whole process, in place of the one
/// before; an empty table brings the built-in choices back. Safe while other threads run
/// operations, but a workspace that was asked for before may be too small for a call after it.
void install_tuning(const TuningTable& table);

/// Where tuning files are looked for: the path in the environment variable ADDER_TUNING if it is
/// set, else adder/tuning.json in $XDG_CACHE_HOME or ~/.cache. Nothing if there is no such folder,
/// or if ADDER_TUNING is "none".
std::optional<std::filesystem::path> default_tuning_path();

}  // namespace adder::cuda
