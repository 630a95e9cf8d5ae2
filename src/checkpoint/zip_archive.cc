#include "checkpoint/zip_archive.h"

#include <cstdint>
#include <optional>

#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

// Record layouts: PKWARE, "APPNOTE.TXT - .ZIP File Format Specification" 6.3.10, section 4.3.
constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kLocator64Signature = 0x07064b50;
constexpr std::size_t kLocalBytes = 30;
constexpr std::size_t kCentralBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kEnd64Bytes = 56;
constexpr std::size_t kLocator64Bytes = 20;
constexpr std::size_t kMaxCommentBytes = 0xffff;
constexpr std::uint16_t kZip64ExtraId = 1;
constexpr std::uint64_t kMarker32 = 0xffffffff;  // "see the zip64 record"
constexpr std::uint64_t kMarker16 = 0xffff;

/// Little-endian reads inside one range; a read past its end is an error that names the record.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view source)
      : bytes_(bytes), source_(source) {}

  std::uint64_t size() const { return bytes_.size(); }
  std::string_view source() const { return source_; }

  std::span<const std::byte> range(std::uint64_t offset, std::uint64_t count,
                                   std::string_view what) const {
    check(offset <= bytes_.size() && count <= bytes_.size() - offset,
          "{}: the zip {} at byte {} needs {} bytes, but the archive ends at byte {}", source_,
          what, offset, count, bytes_.size());
    return bytes_.subspan(offset, count);
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view source_;
};

std::uint64_t read_uint(std::span<const std::byte> record, std::size_t offset, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(record[offset + i]);
  }
  return value;
}

std::string_view read_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
};

/// Where the end record is: the last place whose comment reaches exactly to the end of the archive.
std::uint64_t find_end(const Reader& reader) {
  check(reader.size() >= kEndBytes, "{} has {} bytes, too few for a zip archive", reader.source(),
        reader.size());
  const std::uint64_t last = reader.size() - kEndBytes;
  const std::uint64_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  for (std::uint64_t offset = last + 1; offset-- > first;) {
    const auto record = reader.range(offset, kEndBytes, "end record");
    if (read_uint(record, 0, 4) == kEndSignature &&
        read_uint(record, 20, 2) == reader.size() - offset - kEndBytes) {
      return offset;
    }
  }
  fail("{} has no zip directory at its end: it is cut short, or not a zip archive",
       reader.source());
}

/// The zip64 end record, if its locator stands before the end record.
std::optional<Directory> read_end64(const Reader& reader, std::uint64_t end) {
  if (end < kLocator64Bytes) return {};
  const auto locator = reader.range(end - kLocator64Bytes, kLocator64Bytes, "zip64 locator");
  if (read_uint(locator, 0, 4) != kLocator64Signature) return {};
  const std::uint64_t offset = read_uint(locator, 8, 8);
  const auto record = reader.range(offset, kEnd64Bytes, "zip64 end record");
  check(read_uint(record, 0, 4) == kEnd64Signature,
        "{}: the zip64 end record at byte {} has a wrong signature", reader.source(), offset);
  check(read_uint(record, 16, 4) == 0 && read_uint(record, 20, 4) == 0,
        "{} is one part of a zip archive in several parts, expected a whole one", reader.source());
  return Directory{.offset = read_uint(record, 48, 8),
                   .bytes = read_uint(record, 40, 8),
                   .entries = read_uint(record, 32, 8)};
}

Directory find_directory(const Reader& reader) {
  const std::uint64_t end = find_end(reader);
  const auto record = reader.range(end, kEndBytes, "end record");
  Directory directory{.offset = read_uint(record, 16, 4),
                      .bytes = read_uint(record, 12, 4),
                      .entries = read_uint(record, 10, 2)};
  const bool marked = directory.offset == kMarker32 || directory.bytes == kMarker32 ||
                      directory.entries == kMarker16;
  if (const auto large = marked ? read_end64(reader, end) : std::nullopt) directory = *large;
  check(directory.offset <= end && directory.bytes <= end - directory.offset,
        "{}: the zip directory covers {} bytes from byte {}, expected it before the end record at "
        "byte {}",
        reader.source(), directory.bytes, directory.offset, end);
  return directory;
}

struct CentralEntry {
  std::string name;
  std::uint64_t compressed_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t local_offset = 0;
};

/// Replaces the fields that hold the marker by those of the zip64 extra field, which has only them.
void apply_zip64(CentralEntry& entry, std::span<const std::byte> extra, std::string_view source) {
  if (entry.bytes != kMarker32 && entry.compressed_bytes != kMarker32 &&
      entry.local_offset != kMarker32) {
    return;
  }
  for (std::size_t at = 0; extra.size() - at >= 4;) {
    const std::uint64_t id = read_uint(extra, at, 2);
    const std::uint64_t count = read_uint(extra, at + 2, 2);
    at += 4;
    if (count > extra.size() - at) break;
    if (id != kZip64ExtraId) {
      at += count;
      continue;
    }
    auto fields = extra.subspan(at, count);
    for (std::uint64_t* field : {&entry.bytes, &entry.compressed_bytes, &entry.local_offset}) {
      if (*field != kMarker32) continue;
      check(fields.size() >= 8, "{}: the zip64 field of entry {} is too short", source,
            in_quotes(entry.name));
      *field = read_uint(fields, 0, 8);
      fields = fields.subspan(8);
    }
    return;
  }
  fail("{}: zip entry {} refers to a zip64 field that it does not have", source,
       in_quotes(entry.name));
}

/// The entry's bytes, after its local header was compared with the directory.
std::span<const std::byte> entry_data(const Reader& reader, const CentralEntry& entry,
                                      std::uint64_t data_end) {
  const auto local = reader.range(entry.local_offset, kLocalBytes, "local header");
  check(read_uint(local, 0, 4) == kLocalSignature,
        "{}: zip entry {} has no local header at byte {}", reader.source(), in_quotes(entry.name),
        entry.local_offset);
  const std::uint64_t name_bytes = read_uint(local, 26, 2);
  const std::uint64_t extra_bytes = read_uint(local, 28, 2);
  const std::uint64_t name_offset = entry.local_offset + kLocalBytes;
  const auto name = read_text(reader.range(name_offset, name_bytes, "local header"));
  check(name == entry.name, "{}: zip entry {} is called {} in its local header", reader.source(),
        in_quotes(entry.name), in_quotes(name));
  const std::uint64_t offset = name_offset + name_bytes + extra_bytes;
  check(offset <= data_end && entry.bytes <= data_end - offset,
        "{}: zip entry {} has {} bytes from byte {}, expected its end before the directory at byte "
        "{}",
        reader.source(), in_quotes(entry.name), entry.bytes, offset, data_end);
  return reader.range(offset, entry.bytes, "entry");
}

/// Reads entry `i` of the directory at `at`, and moves `at` behind it.
CentralEntry read_entry(const Reader& reader, std::uint64_t& at, const Directory& directory,
                        std::uint64_t i) {
  const std::string_view source = reader.source();
  const std::uint64_t directory_end = directory.offset + directory.bytes;
  check(directory_end - at >= kCentralBytes,
        "{}: the zip directory ends after {} entries, expected {}", source, i, directory.entries);
  const auto record = reader.range(at, kCentralBytes, "directory entry");
  check(read_uint(record, 0, 4) == kCentralSignature,
        "{}: the zip directory has a wrong signature at byte {}", source, at);
  const std::uint64_t name_bytes = read_uint(record, 28, 2);
  const std::uint64_t extra_bytes = read_uint(record, 30, 2);
  const std::uint64_t comment_bytes = read_uint(record, 32, 2);
  const std::uint64_t tail_bytes = name_bytes + extra_bytes + comment_bytes;
  check(directory_end - at - kCentralBytes >= tail_bytes,
        "{}: entry {} of the zip directory reaches past its end", source, i);
  const auto tail = reader.range(at + kCentralBytes, tail_bytes, "directory entry");
  CentralEntry entry{.name = std::string(read_text(tail.first(name_bytes))),
                     .compressed_bytes = read_uint(record, 20, 4),
                     .bytes = read_uint(record, 24, 4),
                     .local_offset = read_uint(record, 42, 4)};
  apply_zip64(entry, tail.subspan(name_bytes, extra_bytes), source);
  check((read_uint(record, 8, 2) & 1) == 0, "{}: zip entry {} is encrypted", source,
        in_quotes(entry.name));
  const std::uint64_t method = read_uint(record, 10, 2);
  check(method == 0 && entry.compressed_bytes == entry.bytes,
        "{}: zip entry {} is compressed (method {}), expected a stored one as torch.save writes",
        source, in_quotes(entry.name), method);
  at += kCentralBytes + tail_bytes;
  return entry;
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> bytes, std::string_view source) {
  const Reader reader(bytes, source);
  const Directory directory = find_directory(reader);
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    const CentralEntry entry = read_entry(reader, at, directory, i);
    const auto data = entry_data(reader, entry, directory.offset);
    check(entries_.emplace(entry.name, data).second, "{}: zip entry {} appears twice", source,
          in_quotes(entry.name));
  }
}

}  // namespace adder
