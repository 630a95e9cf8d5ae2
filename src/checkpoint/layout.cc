#include "checkpoint/layout.h"

#include <algorithm>
#include <array>
#include <set>
#include <system_error>

#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/torch_zip.h"
#include "core/check.h"
#include "core/quote.h"
#include "gguf/gguf_file.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kWeightFiles = {
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json"};
constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;

bool path_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::string_view text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  check(bytes.size() <= kMaxJsonBytes, "{} has {} bytes, expected at most {}", file.path().string(),
        bytes.size(), kMaxJsonBytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Empty if there are none.
fs::path find_weights(const fs::path& directory) {
  for (std::string_view name : kWeightFiles) {
    if (path_exists(directory / name)) return directory / name;
  }
  return {};
}

void read_index(CheckpointLayout& layout) {
  const MappedFile file(layout.source);
  std::set<fs::path> files;
  for (const auto& [name, shard] : parse_shard_index(text_of(file), layout.source.string())) {
    const fs::path path = layout.directory / shard;
    check(path_exists(path), "{} names the shard {}, which is missing beside it",
          layout.source.string(), in_quotes(shard));
    layout.shards.emplace(name, path);
    files.insert(path);
  }
  layout.weights.assign(files.begin(), files.end());
}

}  // namespace

CheckpointLayout find_layout(const fs::path& directory_or_file) {
  check(path_exists(directory_or_file), "{} does not exist, expected a checkpoint folder or file",
        directory_or_file.string());
  CheckpointLayout layout;
  const bool is_config = directory_or_file.filename() == "config.json";
  if (is_folder(directory_or_file) || is_config) {
    layout.directory = is_config ? directory_or_file.parent_path() : directory_or_file;
    layout.source = find_weights(layout.directory);
    check(!layout.source.empty(),
          "{} has no weights, expected model.safetensors or pytorch_model.bin, an index.json of "
          "shards of either, or a GGUF file",
          layout.directory.string());
  } else {
    layout.directory = directory_or_file.parent_path();
    layout.source = directory_or_file;
  }
  layout.config = layout.directory / "config.json";
  check(path_exists(layout.config), "{} is missing, expected the model's configuration beside {}",
        layout.config.string(), layout.source.filename().string());
  if (layout.source.extension() == ".json") {
    read_index(layout);
  } else {
    layout.weights = {layout.source};
  }
  return layout;
}

std::optional<fs::path> find_gguf(const fs::path& directory_or_file) {
  if (!is_folder(directory_or_file)) {
    const bool named = directory_or_file.extension() == ".gguf" && path_exists(directory_or_file);
    return named || is_gguf_file(directory_or_file) ? std::optional(directory_or_file)
                                                    : std::nullopt;
  }
  return find_weights(directory_or_file).empty() ? gguf_file_in(directory_or_file) : std::nullopt;
}

std::optional<fs::path> find_tokenizer(const fs::path& directory_or_file) {
  auto gguf = find_gguf(directory_or_file);
  const bool in_folder = is_folder(directory_or_file);
  if (gguf && !in_folder) return gguf;
  const fs::path folder = in_folder ? directory_or_file : directory_or_file.parent_path();
  for (std::string_view name : {std::string_view("tokenizer.json"), kGgufTokenizer}) {
    if (path_exists(folder / name)) return folder / name;
  }
  return gguf;
}

StatedConfig read_config(const fs::path& path) {
  const MappedFile file(path);
  return parse_config(text_of(file), path.string());
}

TensorTable read_weights(const MappedFile& file) {
  const std::string source = file.path().string();
  const auto bytes = file.bytes();
  constexpr std::string_view kLfsPointer = "version https://git-lfs";
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  check(!std::string_view(begin, bytes.size()).starts_with(kLfsPointer),
        "{} is a Git LFS pointer and not the weights: fetch them with git lfs pull", source);
  const std::string extension = file.path().extension().string();
  if (extension == ".safetensors") return read_safetensors(bytes, source);
  if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
    return read_torch_zip(bytes, source);
  }
  fail("{} has the extension {}, expected .safetensors, .bin, .pt or .pth", source,
       in_quotes(extension));
}

void check_shards(const CheckpointLayout& layout, const ModelTensors& tensors) {
  for (const auto& [name, path] : layout.shards) {
    const auto found = tensors.find(canonical_name(name));
    check(found != tensors.end() && found->second.name == name &&
              found->second.source == path.string(),
          "{}: tensor {} is missing from {}, where the index says it is", layout.source.string(),
          in_quotes(name), path.string());
  }
}

}  // namespace adder
