#include "checkpoint/model_tensors.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

// Of a quantized matrix, see ConfigFields::size.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 26;

using Visit = std::function<void(const std::string&, std::vector<std::int64_t>)>;

void visit_mamba1_mixer(const ModelConfig& c, const std::string& mixer, const Visit& visit) {
  visit(mixer + "in_proj.weight", {2 * c.d_inner, c.d_model});
  if (c.proj_bias) visit(mixer + "in_proj.bias", {2 * c.d_inner});
  visit(mixer + "x_proj.weight", {c.dt_rank + 2 * c.d_state, c.d_inner});
  visit(mixer + "dt_proj.weight", {c.d_inner, c.dt_rank});
  visit(mixer + "dt_proj.bias", {c.d_inner});
  visit(mixer + (c.stores_A ? "A" : "A_log"), {c.d_inner, c.d_state});
  visit(mixer + "D", {c.d_inner});
}

void visit_mamba2_mixer(const ModelConfig& c, const std::string& mixer, const Visit& visit) {
  const std::int64_t in_proj_rows = 2 * c.d_mlp + c.d_inner + c.conv_dim() + c.nheads;
  visit(mixer + "in_proj.weight", {in_proj_rows, c.d_model});
  if (c.proj_bias) visit(mixer + "in_proj.bias", {in_proj_rows});
  visit(mixer + "dt_bias", {c.nheads});
  visit(mixer + (c.stores_A ? "A" : "A_log"), {c.nheads});
  if (c.d_has_headdim) {
    visit(mixer + "D", {c.nheads, c.headdim});
  } else {
    visit(mixer + "D", {c.nheads});
  }
  if (c.gated_norm) visit(mixer + "norm.weight", {c.d_inner});
}

void visit_layer(const ModelConfig& c, const std::string& layer, const Visit& visit) {
  visit(layer + "norm.weight", {c.d_model});
  const std::string mixer = layer + "mixer.";
  visit(mixer + "conv1d.weight", {c.conv_dim(), c.d_conv});
  if (c.conv_bias) visit(mixer + "conv1d.bias", {c.conv_dim()});
  if (c.architecture == Architecture::mamba2) {
    visit_mamba2_mixer(c, mixer, visit);
  } else {
    visit_mamba1_mixer(c, mixer, visit);
  }
  visit(mixer + "out_proj.weight", {c.d_model, c.d_mlp + c.d_inner});
  if (c.proj_bias) visit(mixer + "out_proj.bias", {c.d_model});
  if (c.d_intermediate > 0) {
    visit(layer + "norm2.weight", {c.d_model});
    visit(layer + "mlp.fc1.weight", {2 * c.d_intermediate, c.d_model});
    visit(layer + "mlp.fc2.weight", {c.d_model, c.d_intermediate});
    if (c.mlp_bias) {
      visit(layer + "mlp.fc1.bias", {2 * c.d_intermediate});
      visit(layer + "mlp.fc2.bias", {c.d_model});
    }
  }
}

/// (channels, 1, d_conv), how PyTorch stores a depthwise convolution, as (channels, d_conv).
ConstTensorView squeezed(const ConstTensorView& view) {
  if (view.rank != 3 || view.dim(1) != 1) return view;
  ConstTensorView out = view;
  out.rank = 2;
  out.shape[1] = view.shape[2];
  out.strides[1] = view.strides[2];
  return out;
}

}  // namespace

std::string canonical_name(std::string_view stored_name) {
  for (std::string_view prefix : {"model.", "backbone."}) {
    if (stored_name.starts_with(prefix)) stored_name.remove_prefix(prefix.size());
  }
  return stored_name == "embeddings.weight" ? "embedding.weight" : std::string(stored_name);
}

void add_tensors(ModelTensors& tensors, const TensorTable& table, const std::string& source,
                 std::size_t file) {
  for (const auto& [name, view] : table) {
    const std::string canonical = canonical_name(name);
    const bool is_convolution = canonical.ends_with(".mixer.conv1d.weight");
    StoredTensor tensor{.view = is_convolution ? squeezed(view) : view,
                        .name = name,
                        .source = source,
                        .file = file};
    const auto [found, is_new] = tensors.emplace(canonical, std::move(tensor));
    check(is_new, "{}: tensor {} is the same as {} in {}, expected one of them", source,
          in_quotes(name), in_quotes(found->second.name), found->second.source);
  }
}

void join_quantized(ModelTensors& tensors) {
  for (WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    const std::string suffix = fmt::format(".{}", name_of(format));
    std::vector<std::string> names;
    for (const auto& [name, stored] : tensors) {
      if (name.ends_with(suffix)) names.push_back(name);
    }
    for (const std::string& name : names) {
      const std::string base = name.substr(0, name.size() - suffix.size());
      const StoredTensor stored = tensors.at(name);
      const auto shape = tensors.find(base + ".shape");
      check(shape != tensors.end(), "{}: tensor {} is there without {}.shape, expected both",
            stored.source, in_quotes(stored.name), base);
      const ConstTensorView& view = shape->second.view;
      check(view.dtype == DType::i64 && view.rank == 1 && view.dim(0) == 2 && view.is_contiguous(),
            "{}: tensor {} is {} of shape {}, expected i64 of shape (2)", shape->second.source,
            in_quotes(shape->second.name), name_of(view.dtype), shape_string(view.dims()));
      std::int64_t extents[2];
      std::memcpy(extents, view.data, sizeof(extents));
      check(std::all_of(std::begin(extents), std::end(extents),
                        [](std::int64_t n) { return n >= 1 && n <= kMaxExtent; }),
            "{}: tensor {} is ({}, {}), expected extents from 1 to {}", shape->second.source,
            in_quotes(shape->second.name), extents[0], extents[1], kMaxExtent);
      const std::int64_t bytes = QuantizedMatrix::bytes(format, extents[0], extents[1]);
      check(stored.view.dtype == DType::u8 && stored.view.is_contiguous() &&
                stored.view.numel() == bytes,
            "{}: tensor {} is {} of shape {}, expected {} bytes for a matrix of shape ({}, {})",
            stored.source, in_quotes(stored.name), name_of(stored.view.dtype),
            shape_string(stored.view.dims()), bytes, extents[0], extents[1]);
      StoredTensor joined = stored;
      joined.view = ConstTensorView(nullptr, DType::f32, extents);
      joined.panels = {
          format,
          {static_cast<const std::byte*>(stored.view.data), static_cast<std::size_t>(bytes)}};
      tensors.erase(shape);
      tensors.erase(name);
      const auto [found, is_new] = tensors.emplace(base, std::move(joined));
      check(is_new, "{}: tensor {} is the same as {} in {}, expected one of them", stored.source,
            in_quotes(stored.name), in_quotes(found->second.name), found->second.source);
    }
  }
}

void for_each_tensor(const ModelConfig& config, const Visit& visit) {
  visit("embedding.weight", {config.padded_vocab_size, config.d_model});
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    visit_layer(config, fmt::format("layers.{}.", i), visit);
  }
  visit("norm_f.weight", {config.d_model});
  if (!config.tie_embeddings) {
    visit("lm_head.weight", {config.padded_vocab_size, config.d_model});
  }
}

}  // namespace adder
