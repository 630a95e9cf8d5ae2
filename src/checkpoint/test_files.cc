#include "checkpoint/test_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>

#include "adder/error.h"

namespace adder::test {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
  static std::atomic<int> counter{0};
  path_ =
      fs::path(::testing::TempDir()) / fmt::format("adder-checkpoint-{}-{}", ::getpid(), counter++);
  fs::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path ScratchFolder::write(const std::string& name, std::string_view content) const {
  std::ofstream file(path_ / name, std::ios::binary);
  file << content;
  return path_ / name;
}

void ScratchFolder::copy_from(const fs::path& folder) const {
  for (const auto& entry : fs::directory_iterator(folder)) {
    fs::copy_file(entry.path(), path_ / entry.path().filename());
  }
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (std::string_view part : parts) out.append(part);
  return out;
}

std::string little_endian(std::uint64_t value, std::size_t count) {
  std::string out(count, '\0');
  for (std::size_t i = 0; i < std::min<std::size_t>(count, 8); ++i) {
    out[i] = static_cast<char>(value >> (8 * i));
  }
  return out;
}

std::string safetensors_file(std::string_view header, std::string_view data) {
  return little_endian(header.size(), 8) + std::string(header) + std::string(data);
}

std::string ZipBuilder::build() const {
  constexpr std::uint64_t kMarker32 = 0xffffffff;
  std::string archive;
  std::string directory;
  for (const auto& [name, data] : entries) {
    const std::uint64_t offset = archive.size();
    const std::string extra = zip64 ? little_endian(1, 2) + little_endian(24, 2) +
                                          little_endian(data.size(), 8) +
                                          little_endian(data.size(), 8) + little_endian(offset, 8)
                                    : "";
    const std::uint64_t size = zip64 ? kMarker32 : data.size();
    const std::string shared = little_endian(flags, 2) + little_endian(method, 2) +
                               little_endian(0, 8) /* time, date, crc */ + little_endian(size, 4) +
                               little_endian(size, 4) + little_endian(name.size(), 2);
    archive += "PK\x03\x04" + little_endian(45, 2) + shared + little_endian(0, 2) + name + data;
    directory += "PK\x01\x02" + little_endian(45, 2) + little_endian(45, 2) + shared +
                 little_endian(extra.size(), 2) + little_endian(0, 10) +
                 little_endian(zip64 ? kMarker32 : offset, 4) + name + extra;
  }
  const std::uint64_t start = archive.size();
  archive += directory;
  if (zip64) {
    const std::uint64_t end64 = archive.size();
    archive += "PK\x06\x06" + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) +
               little_endian(0, 8) + little_endian(entries.size(), 8) +
               little_endian(entries.size(), 8) + little_endian(directory.size(), 8) +
               little_endian(start, 8);
    archive += "PK\x06\x07" + little_endian(0, 4) + little_endian(end64, 8) + little_endian(1, 4);
  }
  const std::uint64_t count = zip64 ? 0xffff : entries.size();
  return archive + "PK\x05\x06" + little_endian(0, 4) + little_endian(count, 2) +
         little_endian(count, 2) + little_endian(zip64 ? kMarker32 : directory.size(), 4) +
         little_endian(zip64 ? kMarker32 : start, 4) + little_endian(comment.size(), 2) + comment;
}

namespace pickle {

std::string text(std::string_view value) {
  return joined({"X", little_endian(value.size(), 4), value});
}

std::string integer(std::int64_t value) {
  return joined({"\x8a\x08", little_endian(static_cast<std::uint64_t>(value), 8)});
}

std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& item : items) out += item;
  return out + "t";
}

std::string global(std::string_view module, std::string_view name) {
  return joined({"c", module, "\n", name, "\n"});
}

std::string call(const std::string& callable, const std::string& arguments) {
  return joined({callable, arguments, "R"});
}

std::string storage(std::string_view storage_class, std::string_view key, std::int64_t numel) {
  const std::string id = tuple(
      {text("storage"), global("torch", storage_class), text(key), text("cpu"), integer(numel)});
  return id + "Q";
}

std::string tensor(const std::string& storage, std::int64_t offset,
                   const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides) {
  const auto integers = [](const std::vector<std::int64_t>& values) {
    std::vector<std::string> items;
    for (std::int64_t value : values) items.push_back(integer(value));
    return tuple(items);
  };
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tuple({storage, integer(offset), integers(shape), integers(strides), "\x89",
                     call(global("collections", "OrderedDict"), ")")}));
}

std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += key + value;
  return out + "u";
}

std::string program(const std::string& body) { return joined({"\x80\x02", body, "."}); }

}  // namespace pickle

ZipBuilder torch_archive(const std::string& data_pickle,
                         const std::map<std::string, std::string>& storages) {
  ZipBuilder zip;
  zip.entries = {{"archive/data.pkl", data_pickle}, {"archive/byteorder", "little"}};
  for (const auto& [key, data] : storages) zip.entries.emplace_back("archive/data/" + key, data);
  zip.entries.emplace_back("archive/version", "3\n");
  return zip;
}

::testing::AssertionResult fails_with(const std::function<void()>& action,
                                      const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find('\n') != std::string::npos) {
      return ::testing::AssertionFailure() << "several lines: " << message;
    }
    for (const std::string& part : parts) {
      if (message.find(part) == std::string::npos) {
        return ::testing::AssertionFailure() << "no \"" << part << "\" in: " << message;
      }
    }
    return ::testing::AssertionSuccess() << message;
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace adder::test
