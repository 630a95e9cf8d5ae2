#pragma once

// Tuning files: which choice was measured to be the fastest, by kind of device, operation, version
// of its kernels and shape. What shapes and choices mean is the operations' business; entries that
// this version of the program does not know are kept as they are.
//
//   {
//     "schema": 1,
//     "entries": [
//       {
//         "device": {"name": "NVIDIA H200", "compute_capability": 90, "multiprocessors": 132},
//         "operation": "ssd_forward",
//         "kernel_version": 1,
//         "shape": {"dtype": "bf16", "batch": 4, ...},
//         "choice": {"variant": "hopper", "segments": 4, ...},
//         "measured": {...}
//       }
//     ]
//   }

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adder/cuda_device.h"

namespace adder::tune {

struct TuningEntry {
  cuda::DeviceModel device;
  std::string operation;
  std::int64_t kernel_version = 0;
  nlohmann::json shape;
  nlohmann::json choice;
  /// What it is based on: an object for people, not looked at.
  nlohmann::json measured;

  friend bool operator==(const TuningEntry&, const TuningEntry&) = default;
};

/// The entries of a file's text. Throws adder::Error, which begins with `source`, if it is not a
/// tuning file, has keys that tuning files do not have, or has two entries for the same case.
std::vector<TuningEntry> parse_tuning(std::string_view text, std::string_view source);

/// The text of a file of these entries, sorted by what they are for.
std::string dump_tuning(const std::vector<TuningEntry>& entries);

/// The text of a file; nothing if there is none. Throws if it is not a regular file or larger than
/// any tuning file.
std::optional<std::string> read_tuning_text(const std::filesystem::path& path);

/// The entries of `old` with those of `news` added, or in the place of those for the same device,
/// operation, version and shape.
std::vector<TuningEntry> merged(std::vector<TuningEntry> old, const std::vector<TuningEntry>& news);

/// Merges the entries into a file, which is created with its folders if need be. Any number of
/// processes and threads may do so at the same time: none loses what another has written, and
/// readers see a whole file at any moment. Throws, and leaves the file alone, if it holds something
/// else.
void update_tuning_file(const std::filesystem::path& path, const std::vector<TuningEntry>& news);

}  // namespace adder::tune
