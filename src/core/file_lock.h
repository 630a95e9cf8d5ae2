#pragma once

#include <filesystem>

namespace adder {

/// Keeps others who lock the same path out, other processes and other threads of this one, while it
/// lives. The path is a file for that purpose alone: it is created if need be, stays empty, and
/// stays when the lock goes. Waits for whoever holds it; a process that dies lets go. Throws
/// adder::Error (naming the path) if the file cannot be opened.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace adder
