#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adder/matrix_rows.h"
#include "adder/model_config.h"
#include "adder/tensor_view.h"
#include "adder/weight_format.h"

namespace adder {

/// A model's weights and configuration, opened from any layout and dialect that Adder reads:
///
///   Hugging Face   config.json with `model_type`; model.safetensors, shards with
///                  model.safetensors.index.json, or the same as pytorch_model.bin
///   state-spaces   config.json with `d_model` and `ssm_cfg`; pytorch_model.bin or safetensors
///   GGUF           one file, as llama.cpp's converter and quantizer write it
///
/// Tensors have canonical names: `embedding.weight`, `layers.N.norm.weight`,
/// `layers.N.mixer.{in_proj.weight, in_proj.bias, conv1d.weight, conv1d.bias, A_log (or A: see
/// ModelConfig::stores_A), D, dt_bias, norm.weight, out_proj.weight, out_proj.bias, x_proj.weight,
/// dt_proj.weight, dt_proj.bias}`, `layers.N.norm2.weight`, `layers.N.mlp.{fc1,fc2}.{weight,bias}`,
/// `norm_f.weight` and, unless embeddings are tied, `lm_head.weight`. Exactly the tensors that the
/// configuration calls for are there, with the shapes it implies and a floating dtype;
/// conv1d.weight is (conv_dim, d_conv).
///
/// Weights are mapped, not read: opening is fast and pages are shared between processes. All
/// members but moves may be called from several threads.
class Checkpoint {
 public:
  /// Opens a checkpoint folder, one weight or index file with config.json beside it, a GGUF file,
  /// or a folder with one GGUF file and no other weights. Throws adder::Error, naming the file, for
  /// whatever is missing, damaged, contradictory or unsupported.
  static Checkpoint open(const std::filesystem::path& directory_or_file);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const ModelConfig& config() const;
  /// The folder.
  const std::filesystem::path& directory() const;
  /// The weight files.
  std::vector<std::filesystem::path> files() const;

  /// Canonical names in alphabetical order.
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  /// The tensor: contiguous, aligned to its element size, valid until `release(name)` or the end of
  /// this object. Throws adder::Error when there is none of that name.
  ///
  /// Normally this is the mapped file itself. A tensor that was stored strided, or at an odd
  /// address (safetensors headers may have any length), is copied on first use, and a quantized one
  /// is decoded to f32.
  ConstTensorView tensor(std::string_view name) const;
  /// A matrix for whoever packs it: nothing is copied or decoded as a whole, and pages of the
  /// mapping go back as rows are consumed. Valid until the end of this object. Null for a tensor
  /// that is no matrix or was stored strided; throws as `tensor` does.
  std::unique_ptr<const MatrixRows> rows(std::string_view name) const;
  /// The tensor's bytes in row-major order as they are stored, at any address; undefined if it was
  /// stored strided or is quantized.
  ConstTensorView stored_view(std::string_view name) const;
  /// Keeps the copy behind such a tensor alive after `release(name)`; null where there is none.
  std::shared_ptr<const void> copy_of(std::string_view name) const;
  /// Gives up the memory behind a tensor that was packed elsewhere: the copy if there is one, or
  /// the pages of the mapping, which are read again from the file if they are touched again.
  void release(std::string_view name) const;

  // What the file holds, without reading any of it.
  std::vector<std::int64_t> shape(std::string_view name) const;
  /// "f32", "bf16", ..., "int8", "int4", or "Q8_0", "Q4_K", ...: see name_of(DType),
  /// name_of(WeightFormat) and name_of(BlockFormat).
  std::string_view stored_format(std::string_view name) const;
  std::int64_t stored_bytes(std::string_view name) const;
  /// The blocks of a block-quantized tensor, row after row, or the bytes of a QuantizedMatrix, at
  /// any address; empty for any other tensor.
  std::span<const std::byte> blocks(std::string_view name) const;
  /// What the tensor is best kept as: its own dtype, or what a quantized one is or comes nearest
  /// to, which for Q8_0 and Q4_0 is exact.
  WeightFormat format(std::string_view name) const;
  /// Whether `blocks` are those of a QuantizedMatrix of format(name).
  bool has_panels(std::string_view name) const;

  /// Elements and bytes of all tensors, as stored.
  std::int64_t parameter_count() const;
  std::int64_t total_bytes() const;

 private:
  struct Contents;
  explicit Checkpoint(std::unique_ptr<Contents> contents);
  std::unique_ptr<Contents> contents_;
};

}  // namespace adder
