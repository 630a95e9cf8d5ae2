#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace adder {

/// A file that is written under a temporary name in the same folder and takes its real name in
/// `commit()`: readers see the old file or the whole new one, and a failure leaves the old one. An
/// object that dies without `commit()` leaves nothing behind. Throws adder::Error (naming the path)
/// when the folder cannot be written or the system reports a failure, a full disk for instance.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends the bytes.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

  /// Brings the bytes to the disk and gives the file its name. Call it once, last.
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

/// Writes a whole file of these bytes through an AtomicFile.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace adder
