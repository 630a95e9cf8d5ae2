#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace adder {

/// The entries of a zip archive (zip64 too) whose entries are stored without compression, as
/// PyTorch writes them: each entry is a range of the archive's bytes.
///
/// Checksums are not compared: PyTorch can be told to leave them out, and summing a checkpoint
/// would read all of it. Throws adder::Error (naming `source`) unless every record lies inside the
/// archive and the local headers agree with the central directory.
class ZipArchive {
 public:
  using Entries = std::map<std::string, std::span<const std::byte>, std::less<>>;

  ZipArchive(std::span<const std::byte> bytes, std::string_view source);

  const Entries& entries() const { return entries_; }

 private:
  Entries entries_;
};

}  // namespace adder
