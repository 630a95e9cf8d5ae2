#pragma once

// Which files make up a checkpoint.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_tensors.h"
#include "checkpoint/stated_config.h"
#include "core/mapped_file.h"

namespace adder {

struct CheckpointLayout {
  std::filesystem::path directory;
  std::filesystem::path config;
  /// The weight or index file, which names the checkpoint in errors.
  std::filesystem::path source;
  std::vector<std::filesystem::path> weights;
  /// With an index: stored tensor name -> shard path. Empty without.
  std::map<std::string, std::filesystem::path> shards;
};

/// Finds the files of the checkpoint at a folder, weight file, index file or config.json. In a
/// folder the first of these counts: model.safetensors, model.safetensors.index.json,
/// pytorch_model.bin, pytorch_model.bin.index.json. Every file named exists.
///
/// A GGUF file is a checkpoint by itself: see find_gguf.
CheckpointLayout find_layout(const std::filesystem::path& directory_or_file);

/// The GGUF file that a path stands for: itself, by its extension or its beginning, or the only one
/// in a folder without other weights. Nothing for other paths.
std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& directory_or_file);

/// A GGUF file without tensors: the tokenizer of a checkpoint that was made from such a file.
inline constexpr std::string_view kGgufTokenizer = "tokenizer.gguf";

/// The file that describes the tokenizer of the checkpoint at a path: of a GGUF file itself; of
/// others, and of folders, tokenizer.json in the folder, or tokenizer.gguf, else the GGUF file of
/// the folder. Nothing if there is none.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& directory_or_file);

StatedConfig read_config(const std::filesystem::path& path);

/// The tensors of a .safetensors, .bin, .pt or .pth file.
TensorTable read_weights(const MappedFile& file);

/// Every tensor of the index came from the shard that it names.
void check_shards(const CheckpointLayout& layout, const ModelTensors& tensors);

}  // namespace adder
