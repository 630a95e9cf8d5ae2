#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace adder {

/// A whole file mapped read-only. The bytes live as long as the object; the file must not be
/// truncated meanwhile. Throws adder::Error (naming the path) when it is missing, a directory, or
/// unreadable. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  /// Tells the system that pages of this range are not needed soon (they are read again from the
  /// file when touched): keeps resident memory down after weights were packed elsewhere.
  void release(std::span<const std::byte> range) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace adder
