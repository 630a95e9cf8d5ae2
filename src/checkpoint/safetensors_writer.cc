#include <algorithm>
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
  check(name != "__metadata__", "cannot write {}: __metadata__ is reserved, expected another name",
        path.string());
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
std::size_t alignment_of(const ConstTensorView& view) {
  const std::size_t element = size_of(view.dtype);
  return view.size_bytes() % 64 == 0 ? 64 : element;
}

/// The header with its length in front, padded with spaces so that the data is 64-byte aligned.
std::string header_text(std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const std::int64_t end = offset + tensor->view.size_bytes();
    const auto dims = tensor->view.dims();
    header[tensor->name] = {{"dtype", stored_name(tensor->view.dtype)},
                            {"shape", std::vector(dims.begin(), dims.end())},
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

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) {
    validate(path, tensor);
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const std::size_t a_bytes = alignment_of(a->view);
    const std::size_t b_bytes = alignment_of(b->view);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a->name < b->name;
  });
  std::set<std::string_view> names;
  for (const NamedTensor* tensor : order) {
    check(names.insert(tensor->name).second, "cannot write {}: the name {} is given twice",
          path.string(), in_quotes(tensor->name));
  }
  std::string header;
  try {
    header = header_text(order, metadata);
  } catch (const json::exception&) {
    fail("cannot write {}: a tensor name or metadata is not UTF-8", path.string());
  }
  AtomicFile file(path);
  file.write(header);
  for (const NamedTensor* tensor : order) {
    file.write({static_cast<const std::byte*>(tensor->view.data),
                static_cast<std::size_t>(tensor->view.size_bytes())});
  }
  file.commit();
}

}  // namespace adder
