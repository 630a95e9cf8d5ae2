#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace adder {

/// Writes a file so that it appears whole or not at all: into a temporary file in the same folder,
/// synced, then renamed over `path`. Throws adder::Error naming the path; the temporary file is
/// removed then.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace adder
