#pragma once

// The tensors of a model under canonical names, whichever dialect stored them, and their comparison
// with the configuration.

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adder/model_config.h"
#include "adder/quantized_matrix.h"
#include "checkpoint/stated_config.h"
#include "checkpoint/tensor_table.h"
#include "gguf/block_format.h"

namespace adder {

/// The rows of a block-quantized tensor one after the other.
struct StoredBlocks {
  BlockFormat format;
  std::span<const std::byte> bytes;
};

/// A matrix in the layout of QuantizedMatrix, whose bytes these are, at any address.
struct StoredPanels {
  WeightFormat format;
  std::span<const std::byte> bytes;
};

/// A tensor and where it came from.
struct StoredTensor {
  /// As TensorTable's: may be strided or misaligned. Of a quantized tensor this is what its blocks
  /// or panels stand for, a shape of f32 without data.
  ConstTensorView view;
  std::optional<StoredBlocks> blocks = {};
  std::optional<StoredPanels> panels = {};
  std::string name;      // the stored one
  std::string source;    // the file, for errors
  std::size_t file = 0;  // its index among the checkpoint's files
};

/// By canonical name.
using ModelTensors = std::map<std::string, StoredTensor, std::less<>>;

/// The name without a dialect's prefixes (`model.`, `backbone.`) and with the original spelling of
/// the embedding: "backbone.embeddings.weight" is "embedding.weight".
std::string canonical_name(std::string_view stored_name);

/// Adds a file's tensors under their canonical names; convolution weights lose the middle dimension
/// of one. Throws adder::Error when two tensors mean the same.
void add_tensors(ModelTensors& tensors, const TensorTable& table, const std::string& source,
                 std::size_t file);

/// Makes one tensor NAME of each pair of NAME.int8 or NAME.int4, u8 with the bytes of a
/// QuantizedMatrix, and NAME.shape, i64 with its rows and columns: how `adder convert` stores
/// matrices. Throws adder::Error for one without the other, or that do not fit together.
void join_quantized(ModelTensors& tensors);

/// Calls `visit(name, shape)` for every tensor that a model of this configuration consists of.
void for_each_tensor(
    const ModelConfig& config,
    const std::function<void(const std::string& name, std::vector<std::int64_t> shape)>& visit);

/// Takes from the tensors what they tell about the model, compares it with the stated values, and
/// checks that every tensor the model needs is there with its exact shape and a floating dtype.
/// `source` names the checkpoint in errors.
///
/// An output matrix beside a tied embedding is dropped from `tensors`: the original format always
/// stores it. Any other tensor that the model does not use is an error: it belongs to a part of
/// the model (an attention layer, an adapter) without which the results would be wrong.
ModelConfig resolve_config(const StatedConfig& stated, ModelTensors& tensors,
                           std::string_view source);

}  // namespace adder
