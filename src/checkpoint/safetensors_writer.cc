#include <algorithm>
#include <cassert>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtypes.h"
#include "core/atomic_file.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

using nlohmann::json;

std::string_view stored_name(DType dtype) {
  for (const auto& [name, known] : kSafetensorsDTypes) {
    if (known == dtype) return name;
  }
  fail("dtype {} has no safetensors name", name_of(dtype));
}

void validate(const std::filesystem::path& path, const NamedTensor& tensor) {
  const auto& [name, view] = tensor;
  check(view.defined(), "cannot write {}: tensor {} is missing", path.string(), in_quotes(name));
  check(view.device.type == DeviceType::cpu, "cannot write {}: tensor {} is not in host memory",
        path.string(), in_quotes(name));
  check(view.is_contiguous(), "cannot write {}: tensor {} is strided, expected a contiguous one",
        path.string(), in_quotes(name));
  check(view.data != nullptr || view.numel() == 0, "cannot write {}: tensor {} has no data",
        path.string(), in_quotes(name));
}

/// What the address of a tensor in the file is a multiple of, if those before it are of as much or
/// more: 64 for what ends at such a place itself, as panels of quantized matrices do.
std::size_t alignment_of(const TensorHeader& tensor) {
  return tensor.bytes() % 64 == 0 ? 64 : size_of(tensor.dtype);
}

std::vector<TensorHeader> in_order(std::vector<TensorHeader> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorHeader& a, const TensorHeader& b) {
    const std::size_t a_bytes = alignment_of(a);
    const std::size_t b_bytes = alignment_of(b);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  return tensors;
}

/// The header with its length in front, padded with spaces so that the data is 64-byte aligned.
std::string header_text(const std::vector<TensorHeader>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const TensorHeader& tensor : tensors) {
    const std::int64_t end = offset + tensor.bytes();
    header[tensor.name] = {{"dtype", stored_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  constexpr std::size_t kLength = 8;
  text.resize((kLength + text.size() + 63) / 64 * 64 - kLength, ' ');
  std::string length(kLength, '\0');
  for (std::size_t i = 0; i < kLength; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

}  // namespace

SafetensorsStream::SafetensorsStream(const std::filesystem::path& path,
                                     std::vector<TensorHeader> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(in_order(std::move(tensors))), file_(path) {
  std::set<std::string_view> names;
  for (const TensorHeader& tensor : tensors_) {
    check(tensor.name != "__metadata__",
          "cannot write {}: __metadata__ is reserved, expected another name", path.string());
    check(names.insert(tensor.name).second, "cannot write {}: the name {} is given twice",
          path.string(), in_quotes(tensor.name));
    bytes_left_ += tensor.bytes();
  }
  try {
    file_.write(header_text(tensors_, metadata));
  } catch (const json::exception&) {
    fail("cannot write {}: a tensor name or metadata is not UTF-8", path.string());
  }
}

void SafetensorsStream::write(std::span<const std::byte> bytes) {
  bytes_left_ -= static_cast<std::int64_t>(bytes.size());
  assert(bytes_left_ >= 0);
  file_.write(bytes);
}

void SafetensorsStream::commit() {
  assert(bytes_left_ == 0);
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorHeader> headers;
  std::map<std::string_view, ConstTensorView> views;
  for (const NamedTensor& tensor : tensors) {
    validate(path, tensor);
    const auto dims = tensor.view.dims();
    headers.push_back({tensor.name, tensor.view.dtype, {dims.begin(), dims.end()}});
    views[tensor.name] = tensor.view;
  }
  SafetensorsStream file(path, std::move(headers), metadata);
  for (const TensorHeader& tensor : file.tensors()) {
    file.write({static_cast<const std::byte*>(views.at(tensor.name).data),
                static_cast<std::size_t>(tensor.bytes())});
  }
  file.commit();
}

}  // namespace adder
