#pragma once

// The tuning file in the command line: which one it is, and what is said about it.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "adder/cuda_device.h"
#include "output.h"

namespace adder::cli {

/// --tuning FILE, for commands that use a CUDA device.
void add_tuning_to(CLI::App& app, std::string& file);

/// The file that the option names, or the default one without it; nothing if either is "none".
std::optional<std::filesystem::path> tuning_path(const std::string& option);

/// Makes the choices in the file those of this process; `device` is the one in use. It is an error
/// if the file that the option names cannot be read. The default file may be missing; if it is not
/// a tuning file, or was measured with other versions of the kernels, one line on standard error
/// says so. Returns {"file", "shapes"} for reports, null where there is no file.
Json install_tuning_file(const std::string& option, const cuda::DeviceModel& device);

}  // namespace adder::cli
