#include "text_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "arguments.h"
#include "core/check.h"
#include "process.h"

namespace adder::cli {
namespace {

// Small enough for a progress bar to move steadily.
constexpr std::size_t kPieceBytes = 8192;
// A line with one NUL byte, with the newline that ends the line before it.
constexpr std::string_view kSeparation("\n\0\n", 3);

}  // namespace

void TextOptions::add_text_to(CLI::App& app, const std::string& what) {
  app.add_option("-p,--prompt", text, what)->option_text("TEXT");
}

void TextOptions::add_file_to(CLI::App& app, const std::string& what) {
  CLI::Option* option = app.add_option("-f,--file", file, what)->option_text("FILE");
  if (CLI::Option* other = app.get_option_no_throw("--prompt")) option->excludes(other);
}

void TextOptions::add_ids_to(CLI::App& app, const std::string& what) {
  CLI::Option* option = app.add_option("--ids", ids, what)->option_text("1,2,3");
  option->check(token_ids());
  for (const char* name : {"--prompt", "--file"}) {
    if (CLI::Option* other = app.get_option_no_throw(name)) option->excludes(other);
  }
}

// ---- TextReader --------------------------------------------------------------------------------

TextReader TextReader::of_text(std::string text) {
  TextReader reader;
  reader.size_bytes_ = static_cast<std::int64_t>(text.size());
  reader.text_ = std::move(text);
  return reader;
}

TextReader TextReader::of_file(const std::string& path) {
  TextReader reader;
  if (path == "-") {
    reader.name_ = "standard input";
    reader.descriptor_ = STDIN_FILENO;
    return reader;
  }
  reader.name_ = path;
  reader.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(reader.descriptor_ >= 0, "{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(reader.descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    reader.size_bytes_ = status.st_size;
  }
  return reader;
}

TextReader::TextReader(TextReader&& other) noexcept
    : name_(std::move(other.name_)),
      text_(std::move(other.text_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_),
      read_bytes_(other.read_bytes_) {}

TextReader::~TextReader() {
  if (descriptor_ > STDIN_FILENO) ::close(descriptor_);
}

bool TextReader::next(std::string& piece) {
  if (descriptor_ < 0) {
    piece = text_.substr(static_cast<std::size_t>(read_bytes_), kPieceBytes);
  } else {
    piece.resize(kPieceBytes);
    ssize_t count = 0;
    do {
      count = ::read(descriptor_, piece.data(), piece.size());
    } while (count < 0 && errno == EINTR && !InterruptGuard::interrupted());
    if (count < 0 && errno == EINTR) count = 0;
    check(count >= 0, "{}: cannot be read: {}", name_, std::strerror(errno));
    piece.resize(static_cast<std::size_t>(count));
  }
  read_bytes_ += static_cast<std::int64_t>(piece.size());
  return !piece.empty();
}

double TextReader::fraction() const {
  if (size_bytes_ <= 0) return -1;
  return static_cast<double>(read_bytes_) / static_cast<double>(size_bytes_);
}

// ---- TokenReader -------------------------------------------------------------------------------

TokenReader::TokenReader(const Tokenizer& tokenizer, TextReader text, EncodeOptions options,
                         std::optional<int> end_of_text)
    : text_(std::move(text)),
      encoder_(std::in_place, tokenizer, options),
      end_of_text_(end_of_text) {}

TokenReader::TokenReader(std::vector<int> ids) : ready_(std::move(ids)) {}

bool TokenReader::next(std::vector<int>& ids, std::size_t limit) {
  if (text_ && ready_.size() - taken_ < limit) {
    // What was handed out goes before more is read, so that memory stays bounded.
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  while (text_ && ready_.size() < limit) {
    if (text_->next(piece_)) {
      end_of_text_ ? encode_separated(piece_) : encode(piece_);
    } else {
      encode(std::exchange(held_back_, {}));
      end_text();
      text_.reset();
    }
  }
  const std::size_t count = std::min(limit, ready_.size() - taken_);
  const auto begin = ready_.begin() + static_cast<std::ptrdiff_t>(taken_);
  ids.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  taken_ += count;
  return count > 0;
}

double TokenReader::fraction() const { return text_ ? text_->fraction() : 1.0; }

void TokenReader::encode(std::string_view text) {
  if (text.empty()) return;
  text_open_ = true;
  text_bytes_ += static_cast<std::int64_t>(text.size());
  encoder_->push(text, ready_);
}

void TokenReader::encode_separated(std::string_view text) {
  const std::string joined = std::exchange(held_back_, {}) + std::string(text);
  std::string_view rest = joined;
  for (std::size_t at; (at = rest.find(kSeparation)) != std::string_view::npos;) {
    encode(rest.substr(0, at));
    end_text();
    rest.remove_prefix(at + kSeparation.size());
  }
  std::size_t keep = std::min(rest.size(), kSeparation.size() - 1);
  while (!kSeparation.starts_with(rest.substr(rest.size() - keep))) --keep;
  encode(rest.substr(0, rest.size() - keep));
  held_back_ = rest.substr(rest.size() - keep);
}

void TokenReader::end_text() {
  encoder_->finish(ready_);
  if (end_of_text_ && text_open_) ready_.push_back(*end_of_text_);
  text_open_ = false;
}

}  // namespace adder::cli
