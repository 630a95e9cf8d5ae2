#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "adder/model_config.h"

namespace adder {

/// config.json in Hugging Face's dialect for a model from a GGUF file. It says all that such a file
/// can, but for the number of rows of the embedding that are used: all of them count.
std::string huggingface_config(const ModelConfig& config);

/// What is to be kGgufTokenizer beside it: the file's metadata without its tensors.
std::vector<std::byte> gguf_metadata(const std::filesystem::path& file);

}  // namespace adder
