#include "checkpoint/checkpoint.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "checkpoint/layout.h"
#include "checkpoint/model_tensors.h"
#include "core/check.h"
#include "core/mapped_file.h"
#include "core/quote.h"
#include "core/tensor.h"

namespace adder {
namespace {

bool is_plain(const ConstTensorView& view) {
  return view.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0;
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

}  // namespace

struct Checkpoint::Contents {
  std::filesystem::path directory;
  std::vector<std::unique_ptr<MappedFile>> files;
  ModelConfig config;
  ModelTensors tensors;
  mutable std::mutex mutex;
  mutable std::map<std::string, Tensor, std::less<>> copies;  // guarded by mutex

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

Checkpoint Checkpoint::open(const std::filesystem::path& directory_or_file) {
  const CheckpointLayout layout = find_layout(directory_or_file);
  const StatedConfig stated = read_config(layout.config);
  auto contents = std::make_unique<Contents>();
  contents->directory = layout.directory;
  for (const auto& path : layout.weights) {
    auto file = std::make_unique<MappedFile>(path);
    add_tensors(contents->tensors, read_weights(*file), path.string(), contents->files.size());
    contents->files.push_back(std::move(file));
  }
  check_shards(layout, contents->tensors);
  contents->config = resolve_config(stated, contents->tensors, layout.source.string());
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
  const ConstTensorView& view = contents_->at(name).view;
  if (is_plain(view)) return view;
  const std::lock_guard lock(contents_->mutex);
  auto found = contents_->copies.find(name);
  if (found == contents_->copies.end()) {
    Tensor copy = Tensor::empty(view.dtype, view.dims());
    copy_elements(view, static_cast<std::byte*>(copy.view.data));
    found = contents_->copies.emplace(name, std::move(copy)).first;
  }
  return found->second.view;
}

void Checkpoint::release(std::string_view name) const {
  const StoredTensor& stored = contents_->at(name);
  if (is_plain(stored.view)) {
    contents_->files[stored.file]->release({static_cast<const std::byte*>(stored.view.data),
                                            static_cast<std::size_t>(stored.view.size_bytes())});
    return;
  }
  const std::lock_guard lock(contents_->mutex);
  if (const auto found = contents_->copies.find(name); found != contents_->copies.end()) {
    contents_->copies.erase(found);
  }
}

std::int64_t Checkpoint::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& [name, stored] : contents_->tensors) count += stored.view.numel();
  return count;
}

std::int64_t Checkpoint::total_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, stored] : contents_->tensors) bytes += stored.view.size_bytes();
  return bytes;
}

}  // namespace adder
