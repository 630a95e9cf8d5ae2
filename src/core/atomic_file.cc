#include "core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/check.h"

namespace adder {

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  check(path.has_filename(), "cannot write {}: it names no file", path.string());
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    check(S_ISREG(status.st_mode), "cannot write {}: it exists and is not a regular file",
          path.string());
  }
  // The process and a counter make the name unique among writers; O_EXCL proves it.
  static std::atomic<unsigned> counter{0};
  temporary_ = path;
  temporary_ += fmt::format(".tmp-{}-{}", ::getpid(), counter.fetch_add(1));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_with_errno("create");
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_with_errno("write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno("write");
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail_with_errno("write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno("replace");
  temporary_.clear();
}

void AtomicFile::fail_with_errno(const char* action) const {
  fail("cannot {} {}: {}", action, path_.string(), std::strerror(errno));
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace adder
