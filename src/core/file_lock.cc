#include "core/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace adder {

FileLock::FileLock(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666)) {
  check(fd_ >= 0, "cannot lock {}: {}", path.string(), std::strerror(errno));
  // flock belongs to the open file, so that two threads of a process exclude each other as well.
  while (::flock(fd_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int error = errno;
    ::close(fd_);
    fail("cannot lock {}: {}", path.string(), std::strerror(error));
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace adder
