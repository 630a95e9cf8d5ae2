#include "core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/check.h"

namespace adder {
namespace {

// The temporary file: closed and, unless it was renamed, removed.
struct TemporaryFile {
  std::string path;
  int fd = -1;
  bool keep = false;
  ~TemporaryFile() {
    if (fd >= 0) ::close(fd);
    if (!keep && !path.empty()) ::unlink(path.c_str());
  }
};

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  static std::atomic<unsigned> counter{0};
  const auto fail_with_errno = [&](const char* what) {
    fail("cannot {} {}: {}", what, path.string(), std::strerror(errno));
  };
  TemporaryFile temporary;
  const std::string name = fmt::format("{}.{}.{}.tmp", path.string(), ::getpid(), counter++);
  temporary.fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (temporary.fd < 0) fail_with_errno("create");
  temporary.path = name;
  while (!bytes.empty()) {
    const ssize_t written = ::write(temporary.fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno("write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(temporary.fd) != 0) fail_with_errno("write");
  if (::rename(temporary.path.c_str(), path.c_str()) != 0) fail_with_errno("replace");
  temporary.keep = true;
}

}  // namespace adder
