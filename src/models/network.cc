#include "models/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/check.h"

namespace adder {

// ---- weights
// -------------------------------------------------------------------------------------

Tensor WeightLoader::vector(const std::string& name) {
  const Tensor host = source_.tensor(name);
  bytes_per_token_ += host.view.numel() * static_cast<std::int64_t>(sizeof(float));
  return backend_.upload(host.view);
}

Tensor WeightLoader::optional_vector(const std::string& name) {
  return source_.has(name) ? vector(name) : Tensor();
}

Tensor WeightLoader::decay(const std::string& mixer) {
  const bool stores_A = config().stores_A;
  const std::string name = mixer + (stores_A ? "A" : "A_log");
  Tensor host = convert(source_.tensor(name).view, DType::f32);
  for (float& v : host.span<float>()) {
    if (stores_A) {
      check(v <= 0, "tensor {} has the value {}, expected none above zero", name, v);
    } else {
      v = -std::exp(v);
    }
  }
  bytes_per_token_ += host.view.size_bytes();
  return backend_.upload(host.view);
}

Tensor WeightLoader::conv_weight(const std::string& name) {
  const Tensor host = source_.tensor(name);
  bytes_per_token_ += host.view.numel() * static_cast<std::int64_t>(sizeof(float));
  return backend_.upload_conv_weight(host.view);
}

bool WeightLoader::embeds_from_head(const std::string& name) const {
  const WeightFormat format = format_for(name);
  return format == source_.format(name) && backend_.embeds_from_head(format);
}

bool may_be_quantized(const ModelConfig& config, std::string_view name) {
  if (name == "lm_head.weight") return true;
  if (name == "embedding.weight") return config.tie_embeddings;
  constexpr std::string_view kLarge[] = {".in_proj.weight", ".out_proj.weight", ".fc1.weight",
                                         ".fc2.weight"};
  return std::any_of(std::begin(kLarge), std::end(kLarge),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

WeightFormat WeightLoader::format_for(const std::string& name) const {
  const WeightFormat stored = source_.format(name);
  const WeightFormat format = format_.value_or(stored);
  if (!is_quantized(format)) return format;
  if (!may_be_quantized(config(), name)) return is_quantized(stored) ? WeightFormat::f32 : stored;
  // Where integers are not multiplied, 16 bits hold them.
  return format_ || backend_.multiplies(format) ? format : WeightFormat::bf16;
}

std::shared_ptr<const LinearWeight> WeightLoader::upload(const std::string& weight,
                                                         const std::string& bias) {
  const Tensor bias_host = !bias.empty() && source_.has(bias) ? source_.tensor(bias) : Tensor();
  const WeightFormat format = format_for(weight);
  std::shared_ptr<const LinearWeight> uploaded;
  const auto as_stored =
      source_.format(weight) == format ? source_.quantized(weight) : std::nullopt;
  if (as_stored) {
    uploaded = backend_.upload_quantized(*as_stored, bias_host.view);
  } else if (const auto rows = source_.rows(weight)) {
    uploaded = backend_.upload_rows(*rows, bias_host.view, format);
    source_.release(weight);
  } else {
    uploaded = backend_.upload_linear(source_.tensor(weight).view, bias_host.view, format);
    source_.release(weight);
  }
  bytes_per_token_ += uploaded->size_bytes();
  matrix_flops_ += 2 * uploaded->in_features() * uploaded->out_features();
  return uploaded;
}

std::shared_ptr<const LinearWeight> WeightLoader::linear(const std::string& name) {
  return upload(name + ".weight", name + ".bias");
}

std::shared_ptr<const LinearWeight> WeightLoader::linear_without_bias(const std::string& name) {
  return upload(name + ".weight", "");
}

Tensor WeightLoader::embedding(const std::string& name) {
  const Tensor host = source_.tensor(name);
  return backend_.upload_embedding(host.view, host.storage);
}

std::shared_ptr<const LinearWeight> WeightLoader::head(const std::string& name) {
  const std::int64_t flops = matrix_flops_;
  auto out = upload(name, "");
  matrix_flops_ = flops;  // a prefill computes the head for its last token alone
  return out;
}

std::shared_ptr<const LinearWeight> WeightLoader::tied_head(const std::string& name,
                                                            const Tensor& embedding) {
  const Tensor host = source_.tensor(name);
  auto out = backend_.upload_tied_head(embedding, host.view, format_for(name));
  source_.release(name);
  bytes_per_token_ += out->size_bytes();
  return out;
}

// ---- state
// ---------------------------------------------------------------------------------------

LayerStateShape layer_state_shape(const ModelConfig& config) {
  if (config.architecture == Architecture::mamba2) {
    const std::int64_t conv_channels = config.d_inner + 2 * config.ngroups * config.d_state;
    return {.conv = {config.d_conv - 1, conv_channels},
            .ssm = {config.nheads, config.headdim, config.d_state}};
  }
  return {.conv = {config.d_conv - 1, config.d_inner}, .ssm = {config.d_inner, config.d_state}};
}

std::int64_t state_bytes(const ModelConfig& config, DType recurrent) {
  const LayerStateShape shape = layer_state_shape(config);
  const auto product = [](const std::vector<std::int64_t>& dims) {
    std::int64_t n = 1;
    for (std::int64_t d : dims) n *= d;
    return n;
  };
  return config.n_layer * (product(shape.conv) * static_cast<std::int64_t>(sizeof(float)) +
                           product(shape.ssm) * static_cast<std::int64_t>(size_of(recurrent)));
}

NetworkState Network::new_state(Backend& backend, std::int64_t nsequences) const {
  LayerStateShape shape = layer_state_shape(config_);
  shape.conv.insert(shape.conv.begin(), nsequences);
  shape.ssm.insert(shape.ssm.begin(), nsequences);
  NetworkState state(static_cast<std::size_t>(config_.n_layer));
  for (LayerState& layer : state) {
    layer.conv = backend.zeros(shape.conv);
    layer.ssm = backend.new_recurrent_states(shape.ssm);
  }
  return state;
}

void copy_state(Backend& backend, NetworkState& to, std::int64_t to_row, const NetworkState& from,
                std::int64_t from_row) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    for (Tensor LayerState::*part : {&LayerState::conv, &LayerState::ssm}) {
      Tensor row = backend.rows(to[i].*part, to_row, 1);
      backend.copy(row, backend.rows(from[i].*part, from_row, 1));
    }
  }
}

// ---- layers
// --------------------------------------------------------------------------------------

namespace {

std::unique_ptr<Mixer> load_mixer(WeightLoader& loader, const std::string& prefix) {
  switch (loader.config().architecture) {
    case Architecture::mamba2:
      return load_mamba2_mixer(loader, prefix);
    case Architecture::mamba1:
    case Architecture::falcon_mamba:
      return load_mamba1_mixer(loader, prefix);
  }
  return nullptr;
}

// Flops of the recurrence per token and layer: S = a S + (dt x) Bᵀ and y = S C.
std::int64_t scan_flops(const ModelConfig& config) { return 5 * config.d_inner * config.d_state; }

}  // namespace

Network::Network(const WeightSource& source, Backend& backend, std::optional<WeightFormat> format,
                 const std::function<void(double)>& progress)
    : config_(source.config()) {
  WeightLoader loader(source, backend, format);
  const std::string embedding = "embedding.weight";
  const bool is_of_head = config_.tie_embeddings && loader.embeds_from_head(embedding);
  // The largest matrix first, if it has to be made of another format: the least memory is taken
  // when nothing else is there yet.
  if (is_of_head) {
    head_ = loader.head(embedding);
  } else {
    embedding_ = loader.embedding(embedding);
  }
  for (std::int64_t i = 0; i < config_.n_layer; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    Layer layer;
    layer.norm = loader.vector(prefix + "norm.weight");
    layer.mixer = load_mixer(loader, prefix + "mixer.");
    if (config_.d_intermediate > 0) {
      layer.mlp_norm = loader.vector(prefix + "norm2.weight");
      layer.fc1 = loader.linear(prefix + "mlp.fc1");
      layer.fc2 = loader.linear(prefix + "mlp.fc2");
    }
    layers_.push_back(std::move(layer));
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(config_.n_layer + 1));
  }
  final_norm_ = loader.vector("norm_f.weight");
  if (!config_.tie_embeddings) {
    head_ = loader.head("lm_head.weight");
  } else if (!is_of_head) {
    head_ = loader.tied_head(embedding, embedding_);
  }
  bytes_per_token_ = loader.bytes_per_token();
  flops_per_token_ = loader.matrix_flops() + config_.n_layer * scan_flops(config_);
  if (progress) progress(1.0);
}

Tensor Network::mlp(Backend& backend, const Layer& layer, const Tensor& x, Tensor& residual) const {
  const Tensor both = backend.linear(x, *layer.fc1);
  const std::int64_t width = both.view.dim(1) / 2;
  return backend.linear_add(
      residual,
      backend.gated_mlp(backend.columns(both, 0, width), backend.columns(both, width, width)),
      *layer.fc2);
}

Tensor Network::forward(Backend& backend, const Tensor& ids, const Sequences& sequences,
                        NetworkState& state, const Observer& observer) const {
  Tensor residual = embedding_.defined() ? backend.embedding(ids, embedding_)
                                         : backend.tied_embedding(ids, *head_);
  if (observer) observer(0, residual);
  Tensor branch;  // what of the last mixer or MLP is still to be added to the residual stream
  const auto norm = [&](const Tensor& weight) {
    return branch.defined() ? backend.add_rms_norm(residual, branch, weight, config_.norm_epsilon)
                            : backend.rms_norm(residual, weight, config_.norm_epsilon);
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    Tensor normed = norm(layer.norm);
    if (observer && i > 0) observer(static_cast<std::int64_t>(i), residual);
    branch = layer.mixer->forward(backend, normed, residual, state[i], sequences);
    if (layer.fc1 != nullptr) {
      normed = norm(layer.mlp_norm);
      branch = mlp(backend, layer, normed, residual);
    }
  }
  Tensor hidden = norm(final_norm_);
  if (observer) observer(config_.n_layer, residual);
  return hidden;
}

Tensor Network::logits(Backend& backend, const Tensor& hidden) const {
  return backend.logits(hidden, *head_);
}

}  // namespace adder
