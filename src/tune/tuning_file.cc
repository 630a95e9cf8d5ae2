#include "tune/tuning_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>

#include "core/atomic_file.h"
#include "core/check.h"
#include "core/file_lock.h"
#include "core/json_document.h"
#include "core/json_object.h"
#include "core/quote.h"

namespace adder::tune {
namespace {

using nlohmann::json;

constexpr std::int64_t kSchema = 1;
// A hundred thousand entries.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::int64_t kMostInt = 1 << 30;

/// What an entry is for, as text; keys of JSON objects are sorted, so that equal ones look alike.
std::string key_of(const TuningEntry& entry) {
  return json{entry.device.name,
              entry.device.compute_capability,
              entry.device.multiprocessors,
              entry.operation,
              entry.shape,
              entry.kernel_version}
      .dump();
}

cuda::DeviceModel read_device(const json& value, const std::string& where) {
  JsonObject object(value, where);
  cuda::DeviceModel device{
      .name = object.text("name"),
      .compute_capability = static_cast<int>(object.integer("compute_capability", 0, kMostInt)),
      .multiprocessors = static_cast<int>(object.integer("multiprocessors", 0, kMostInt))};
  object.done();
  return device;
}

TuningEntry read_entry(const json& value, const std::string& where) {
  JsonObject object(value, where);
  TuningEntry entry{.device = read_device(object.object("device"), where + ": device"),
                    .operation = object.text("operation"),
                    .kernel_version = object.integer("kernel_version", 0, kMostInt),
                    .shape = object.object("shape"),
                    .choice = object.object("choice"),
                    .measured = object.object("measured")};
  object.done();
  return entry;
}

json to_json(const TuningEntry& entry) {
  return {{"device",
           {{"name", entry.device.name},
            {"compute_capability", entry.device.compute_capability},
            {"multiprocessors", entry.device.multiprocessors}}},
          {"operation", entry.operation},
          {"kernel_version", entry.kernel_version},
          {"shape", entry.shape},
          {"choice", entry.choice},
          {"measured", entry.measured}};
}

class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::vector<TuningEntry> parse_tuning(std::string_view text, std::string_view source) {
  const json document = parse_json_object(text, source);
  JsonObject object(document, std::string(source));
  object.integer("schema", kSchema, kSchema);
  std::vector<TuningEntry> entries;
  std::map<std::string, std::size_t> known;
  for (const json& value : object.array("entries")) {
    const std::size_t number = entries.size() + 1;
    const std::string where = fmt::format("{}: entry {}", source, number);
    entries.push_back(read_entry(value, where));
    const auto [same, is_new] = known.emplace(key_of(entries.back()), number);
    check(is_new, "{} is for the same device, kernel and shape as entry {}", where, same->second);
  }
  object.done();
  return entries;
}

std::string dump_tuning(const std::vector<TuningEntry>& entries) {
  std::map<std::string, const TuningEntry*> sorted;
  for (const TuningEntry& entry : entries) sorted.emplace(key_of(entry), &entry);
  // One entry a line: files are read by people, and compared line by line.
  std::string out = fmt::format("{{\"schema\": {}, \"entries\": [", kSchema);
  const char* separator = "\n";
  for (const auto& [key, entry] : sorted) {
    out += separator + to_json(*entry).dump();
    separator = ",\n";
  }
  return out + "\n]}\n";
}

std::optional<std::string> read_tuning_text(const std::filesystem::path& path) {
  // Opening something that is not a file must not wait for whoever is at its other end.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return {};
  check(fd >= 0, "cannot open {}: {}", path.string(), std::strerror(errno));
  const OpenFile file(fd);
  struct stat status {};
  check(::fstat(fd, &status) == 0 && S_ISREG(status.st_mode), "{} is not a regular file",
        path.string());
  std::string text;
  for (;;) {
    const std::size_t before = text.size();
    text.resize(before + (std::size_t{1} << 16));
    const ssize_t count = ::read(fd, text.data() + before, text.size() - before);
    if (count < 0 && errno != EINTR) {
      fail("cannot read {}: {}", path.string(), std::strerror(errno));
    }
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return text;
    check(text.size() <= kMostBytes, "{} is larger than {} bytes, expected a tuning file",
          path.string(), kMostBytes);
  }
}

std::vector<TuningEntry> merged(std::vector<TuningEntry> old,
                                const std::vector<TuningEntry>& news) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < old.size(); ++i) places.emplace(key_of(old[i]), i);
  for (const TuningEntry& entry : news) {
    const auto [place, is_new] = places.emplace(key_of(entry), old.size());
    if (is_new) {
      old.push_back(entry);
    } else {
      old[place->second] = entry;
    }
  }
  return old;
}

void update_tuning_file(const std::filesystem::path& path, const std::vector<TuningEntry>& news) {
  std::error_code error;
  // A link to a file elsewhere stays one: what it points to is replaced.
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  const std::filesystem::path& file = error ? path : target;
  if (file.has_parent_path()) {
    std::filesystem::create_directories(file.parent_path(), error);
    check(!error, "cannot create the folder {}: {}", file.parent_path().string(), error.message());
  }
  std::filesystem::path lock_path = file;
  lock_path += ".lock";
  const FileLock lock(lock_path);
  std::vector<TuningEntry> entries;
  if (const auto text = read_tuning_text(file)) entries = parse_tuning(*text, file.string());
  AtomicFile out(file);
  out.write(dump_tuning(merged(std::move(entries), news)));
  out.commit();
}

}  // namespace adder::tune
