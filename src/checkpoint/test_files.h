#pragma once

// Writers of small files for tests, well-formed or broken at will: they check nothing.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace adder::test {

/// A folder of the running test, empty at first and removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view content) const;
  /// Copies the files of another folder.
  void copy_from(const std::filesystem::path& folder) const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// The parts one after the other.
std::string joined(std::initializer_list<std::string_view> parts);

/// `value` in `count` little-endian bytes.
std::string little_endian(std::uint64_t value, std::size_t count);

/// Header length, header, data.
std::string safetensors_file(std::string_view header, std::string_view data);

/// A zip archive of stored entries, with knobs for what tests break.
struct ZipBuilder {
  std::vector<std::pair<std::string, std::string>> entries;
  bool zip64 = false;  // sizes, offsets and the directory only in zip64 fields
  std::uint16_t method = 0;
  std::uint16_t flags = 0x808;
  std::string comment;

  std::string build() const;
};

// Pieces of a protocol 2 pickle.
namespace pickle {
std::string text(std::string_view value);
std::string integer(std::int64_t value);
std::string tuple(const std::vector<std::string>& items);
std::string global(std::string_view module, std::string_view name);
std::string call(const std::string& callable, const std::string& arguments);
/// ('storage', torch.CLASS, key, 'cpu', numel) as a persistent id.
std::string storage(std::string_view storage_class, std::string_view key, std::int64_t numel);
/// torch._utils._rebuild_tensor_v2(...).
std::string tensor(const std::string& storage, std::int64_t offset,
                   const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides);
/// A dictionary; keys and values are pickled already.
std::string dict(const std::vector<std::pair<std::string, std::string>>& items);
/// Protocol header, body, STOP.
std::string program(const std::string& body);
}  // namespace pickle

/// The archive torch.save would write: `storages` by key.
ZipBuilder torch_archive(const std::string& data_pickle,
                         const std::map<std::string, std::string>& storages);

/// `action` throws one adder::Error, a single line that has every one of `parts` in it.
::testing::AssertionResult fails_with(const std::function<void()>& action,
                                      const std::vector<std::string>& parts);

}  // namespace adder::test
