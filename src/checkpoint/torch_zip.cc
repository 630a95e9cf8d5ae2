#include "checkpoint/torch_zip.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "checkpoint/unpickle.h"
#include "checkpoint/zip_archive.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The top folder, with its slash: where data.pkl is.
std::string find_folder(const ZipArchive& archive, std::string_view source) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::string folder;
  for (const auto& [name, data] : archive.entries()) {
    if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
    check(folder.empty(), "{} has two entries data.pkl, expected one", source);
    folder = name.substr(0, name.size() - kPickle.size() + 1);
  }
  check(!folder.empty(), "{} has no entry data.pkl, expected a file that torch.save wrote", source);
  return folder;
}

/// Elements from the first to the last of the tensor, both included, or nothing on overflow. The
/// tensor has elements.
std::optional<std::uint64_t> span_elements(const PickledTensor& tensor) {
  constexpr auto kMax = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const auto steps = static_cast<std::uint64_t>(tensor.shape[i] - 1);
    const auto stride = static_cast<std::uint64_t>(tensor.strides[i]);
    if (steps != 0 && stride > (kMax - last) / steps) return {};
    last += steps * stride;
  }
  return last + 1;
}

/// Elements of the tensor, where an extent of 0 counts as 1, or nothing on overflow.
std::optional<std::uint64_t> element_count(const PickledTensor& tensor) {
  std::uint64_t count = 1;
  for (std::int64_t extent : tensor.shape) {
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1));
    if (count > std::uint64_t{std::numeric_limits<std::int64_t>::max()} / factor) return {};
    count *= factor;
  }
  return count;
}

std::span<const std::byte> storage_bytes(const ZipArchive& archive, const std::string& folder,
                                         const PickledTensor& tensor, std::string_view source) {
  const PickledStorage& storage = tensor.storage;
  const auto found = archive.entries().find(folder + "data/" + storage.key);
  check(found != archive.entries().end(), "{}: tensor {} is in storage {}, which the archive lacks",
        source, in_quotes(tensor.name), in_quotes(storage.key));
  const std::uint64_t have = found->second.size() / size_of(storage.dtype);
  check(found->second.size() % size_of(storage.dtype) == 0 &&
            have == static_cast<std::uint64_t>(storage.numel),
        "{}: storage {} of tensor {} has {} bytes, expected {} elements of {}", source,
        in_quotes(storage.key), in_quotes(tensor.name), found->second.size(), storage.numel,
        name_of(storage.dtype));
  return found->second;
}

ConstTensorView view_of(const PickledTensor& tensor, std::span<const std::byte> storage,
                        std::string_view source) {
  const auto numel = static_cast<std::uint64_t>(tensor.storage.numel);
  const auto offset = static_cast<std::uint64_t>(tensor.offset);
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  // A tensor with more elements than its storage repeats some of them; no model's weights do.
  const auto count = element_count(tensor);
  check(count && (empty || *count <= numel),
        "{}: tensor {} of shape {} has more elements than its storage, which has {}", source,
        in_quotes(tensor.name), shape_string(tensor.shape), numel);
  const auto reach = empty ? std::uint64_t{0} : span_elements(tensor);
  check(reach && offset <= numel && *reach <= numel - offset,
        "{}: tensor {} of shape {} with strides {} from element {} reaches past its storage of {} "
        "elements",
        source, in_quotes(tensor.name), shape_string(tensor.shape), shape_string(tensor.strides),
        offset, numel);
  ConstTensorView view(storage.data() + offset * size_of(tensor.storage.dtype),
                       tensor.storage.dtype, tensor.shape);
  std::copy(tensor.strides.begin(), tensor.strides.end(), view.strides.begin());
  return view;
}

}  // namespace

TensorTable read_torch_zip(std::span<const std::byte> bytes, std::string_view source) {
  // Files from before PyTorch 1.6 are a sequence of pickles, which start with this opcode.
  check(bytes.empty() || bytes[0] != std::byte{0x80},
        "{} is in the format of PyTorch before 1.6, expected a zip archive: load it and save it "
        "again with a newer version",
        source);
  const ZipArchive archive(bytes, source);
  const std::string folder = find_folder(archive, source);
  check(!archive.entries().contains(folder + "constants.pkl"),
        "{} is a TorchScript program, expected a state dict", source);
  if (const auto found = archive.entries().find(folder + "byteorder");
      found != archive.entries().end()) {
    check(text_of(found->second) == "little", "{} has byte order {}, expected \"little\"", source,
          in_quotes(text_of(found->second)));
  }
  const auto pickle = archive.entries().find(folder + "data.pkl")->second;
  TensorTable table;
  for (const PickledTensor& tensor : unpickle_state_dict(pickle, source)) {
    const auto storage = storage_bytes(archive, folder, tensor, source);
    table.emplace(tensor.name, view_of(tensor, storage, source));
  }
  return table;
}

}  // namespace adder
