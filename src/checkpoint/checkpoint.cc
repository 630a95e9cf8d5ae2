#include "checkpoint/checkpoint.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "checkpoint/gguf_model.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_tensors.h"
#include "checkpoint/stored_rows.h"
#include "core/check.h"
#include "core/mapped_file.h"
#include "core/quote.h"
#include "core/tensor.h"

namespace adder {
namespace {

/// The file's bytes are the tensor.
bool is_plain(const StoredTensor& stored) {
  const ConstTensorView& view = stored.view;
  return !stored.blocks && !stored.panels && view.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0;
}

std::int64_t bytes_of(const StoredTensor& stored) {
  if (stored.blocks) return static_cast<std::int64_t>(stored.blocks->bytes.size());
  if (stored.panels) return static_cast<std::int64_t>(stored.panels->bytes.size());
  return stored.view.size_bytes();
}

/// Copies `source`, whatever its strides and alignment, to `target` in row-major order.
void copy_elements(const ConstTensorView& source, std::byte* target) {
  const std::size_t element_bytes = size_of(source.dtype);
  const auto* from = static_cast<const std::byte*>(source.data);
  if (source.is_contiguous()) {
    std::memcpy(target, from, static_cast<std::size_t>(source.size_bytes()));
    return;
  }
  std::array<std::int64_t, kMaxRank> index{};
  const std::int64_t count = source.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (int d = 0; d < source.rank; ++d) offset += index[d] * source.strides[d];
    std::memcpy(target, from + offset * static_cast<std::int64_t>(element_bytes), element_bytes);
    target += element_bytes;
    for (int d = source.rank - 1; d >= 0 && ++index[d] == source.shape[d]; --d) index[d] = 0;
  }
}

void decode_panels(const StoredPanels& panels, Tensor& to) {
  const std::int64_t columns = to.view.dim(1);
  // The bytes are those of the file, whose owner outlives this.
  const QuantizedMatrix matrix(panels.format, to.view.dim(0), columns,
                               {std::shared_ptr<const std::byte>(), panels.bytes.data()});
  const auto row_size = static_cast<std::size_t>(columns);
  for (std::int64_t row = 0; row < matrix.rows(); ++row) {
    matrix.unpack_row(row,
                      to.span<float>().subspan(static_cast<std::size_t>(row) * row_size, row_size));
  }
}

Tensor copied(const StoredTensor& stored) {
  Tensor copy = Tensor::empty(stored.view.dtype, stored.view.dims());
  if (stored.blocks) {
    decode_blocks(stored.blocks->format, stored.blocks->bytes, copy.span<float>());
  } else if (stored.panels) {
    decode_panels(*stored.panels, copy);
  } else {
    copy_elements(stored.view, static_cast<std::byte*>(copy.view.data));
  }
  return copy;
}

}  // namespace

struct Checkpoint::Contents {
  std::filesystem::path directory;
  std::vector<std::unique_ptr<MappedFile>> files;
  ModelConfig config;
  ModelTensors tensors;
  mutable std::mutex mutex;
  mutable std::map<std::string, Tensor, std::less<>> copies;  // guarded by mutex

  void open_folder(const CheckpointLayout& layout);
  void open_gguf(const std::filesystem::path& path);

  const StoredTensor& at(std::string_view name) const {
    const auto found = tensors.find(name);
    check(found != tensors.end(), "{} has no tensor {}", directory.string(), in_quotes(name));
    return found->second;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

void Checkpoint::Contents::open_folder(const CheckpointLayout& layout) {
  const StatedConfig stated = read_config(layout.config);
  directory = layout.directory;
  for (const auto& path : layout.weights) {
    auto file = std::make_unique<MappedFile>(path);
    add_tensors(tensors, read_weights(*file), path.string(), files.size());
    files.push_back(std::move(file));
  }
  check_shards(layout, tensors);
  join_quantized(tensors);
  config = resolve_config(stated, tensors, layout.source.string());
}

void Checkpoint::Contents::open_gguf(const std::filesystem::path& path) {
  directory = path.parent_path();
  files.push_back(std::make_unique<MappedFile>(path));
  const GgufFile file(files.back()->bytes(), path.string());
  const StatedConfig stated = read_gguf_config(file);
  add_gguf_tensors(tensors, file, stated.model.architecture);
  config = resolve_config(stated, tensors, path.string());
}

Checkpoint Checkpoint::open(const std::filesystem::path& directory_or_file) {
  auto contents = std::make_unique<Contents>();
  if (const auto gguf = find_gguf(directory_or_file)) {
    contents->open_gguf(*gguf);
  } else {
    contents->open_folder(find_layout(directory_or_file));
  }
  return Checkpoint(std::move(contents));
}

const ModelConfig& Checkpoint::config() const { return contents_->config; }
const std::filesystem::path& Checkpoint::directory() const { return contents_->directory; }

std::vector<std::filesystem::path> Checkpoint::files() const {
  std::vector<std::filesystem::path> out;
  for (const auto& file : contents_->files) out.push_back(file->path());
  return out;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  for (const auto& [name, stored] : contents_->tensors) out.push_back(name);
  return out;
}

bool Checkpoint::has(std::string_view name) const {
  return contents_->tensors.find(name) != contents_->tensors.end();
}

ConstTensorView Checkpoint::tensor(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (is_plain(stored)) return stored.view;
  const std::lock_guard lock(contents_->mutex);
  auto found = contents_->copies.find(name);
  if (found == contents_->copies.end()) {
    found = contents_->copies.emplace(name, copied(stored)).first;
  }
  return found->second.view;
}

std::unique_ptr<const MatrixRows> Checkpoint::rows(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  const bool is_dense = stored.blocks || stored.panels || stored.view.is_contiguous();
  if (stored.view.rank != 2 || !is_dense) return nullptr;
  return std::make_unique<StoredRows>(stored, *contents_->files[stored.file]);
}

ConstTensorView Checkpoint::stored_view(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (stored.blocks || stored.panels || !stored.view.is_contiguous()) return {};
  return stored.view;
}

std::shared_ptr<const void> Checkpoint::copy_of(std::string_view name) const {
  const std::lock_guard lock(contents_->mutex);
  const auto found = contents_->copies.find(name);
  return found == contents_->copies.end() ? nullptr : found->second.storage;
}

void Checkpoint::release(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (is_plain(stored)) {
    contents_->files[stored.file]->release({static_cast<const std::byte*>(stored.view.data),
                                            static_cast<std::size_t>(stored.view.size_bytes())});
    return;
  }
  if (stored.blocks) contents_->files[stored.file]->release(stored.blocks->bytes);
  if (stored.panels) contents_->files[stored.file]->release(stored.panels->bytes);
  if (const ConstTensorView view = stored_view(name); view.defined()) {
    contents_->files[stored.file]->release(
        {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.size_bytes())});
  }
  const std::lock_guard lock(contents_->mutex);
  if (const auto found = contents_->copies.find(name); found != contents_->copies.end()) {
    contents_->copies.erase(found);
  }
}

std::vector<std::int64_t> Checkpoint::shape(std::string_view name) const {
  const auto dims = contents_->at(name).view.dims();
  return {dims.begin(), dims.end()};
}

std::string_view Checkpoint::stored_format(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (stored.panels) return name_of(stored.panels->format);
  return stored.blocks ? name_of(stored.blocks->format) : name_of(stored.view.dtype);
}

std::int64_t Checkpoint::stored_bytes(std::string_view name) const {
  return bytes_of(contents_->at(name));
}

std::span<const std::byte> Checkpoint::blocks(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (stored.panels) return stored.panels->bytes;
  return stored.blocks ? stored.blocks->bytes : std::span<const std::byte>();
}

WeightFormat Checkpoint::format(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (stored.panels) return stored.panels->format;
  if (stored.blocks) {
    return stored.blocks->format == BlockFormat::q4_0 ? WeightFormat::int4 : WeightFormat::int8;
  }
  return *format_of(stored.view.dtype);  // every tensor has a floating dtype
}

bool Checkpoint::has_panels(std::string_view name) const {
  return contents_->at(name).panels.has_value();
}

std::int64_t Checkpoint::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& [name, stored] : contents_->tensors) count += stored.view.numel();
  return count;
}

std::int64_t Checkpoint::total_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, stored] : contents_->tensors) bytes += bytes_of(stored);
  return bytes;
}

}  // namespace adder
