#include "checkpoint/gguf_model.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/quote.h"
#include "gguf/token_type.h"

namespace adder {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 26;  // see ConfigFields::size

/// The keys of one architecture: "mamba2.ssm.state_size".
class ModelKeys {
 public:
  ModelKeys(const GgufFile& file, std::string_view prefix) : file_(file), prefix_(prefix) {}

  std::string path(std::string_view key) const { return prefix_ + "." + std::string(key); }

  std::int64_t required_size(std::string_view key) const {
    const auto value = file_.integer(path(key), 1, kMaxSize);
    check(value.has_value(), "{} has no {}, expected a positive integer", file_.source(),
          path(key));
    return *value;
  }

  Stated<std::int64_t> stated_size(std::string_view key) const {
    return {path(key), required_size(key)};
  }

  float required_epsilon(std::string_view key) const {
    const auto value = file_.number(path(key));
    check(value.has_value(), "{} has no {}, expected a small positive number", file_.source(),
          path(key));
    check(*value >= 0.0 && *value <= 1.0, "{}: {} is {}, expected a number from 0 to 1",
          file_.source(), path(key), *value);
    return static_cast<float>(*value);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

void read_mamba1(const GgufFile& file, const ModelKeys& keys, StatedConfig& stated) {
  ModelConfig& model = stated.model;
  stated.dt_rank = keys.stated_size("ssm.time_step_rank");
  model.architecture = Architecture::mamba1;
  if (file.boolean(keys.path("ssm.dt_b_c_rms")).value_or(false)) {
    model.architecture = Architecture::falcon_mamba;
    model.mixer_norm_epsilon = model.norm_epsilon;
  }
}

void read_mamba2(const ModelKeys& keys, StatedConfig& stated) {
  ModelConfig& model = stated.model;
  model.architecture = Architecture::mamba2;
  model.gated_norm = true;
  model.ngroups = keys.required_size("ssm.group_count");
  // Says how to cut, not what to compute, and no key has it.
  model.chunk_size = 256;
  stated.nheads = keys.stated_size("ssm.time_step_rank");
}

/// The list of tokens has an element for each row of the embedding; those that only fill it up to
/// there do not count.
void read_vocabulary(const GgufFile& file, const ModelKeys& keys, StatedConfig& stated) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const auto ntokens = file.array_size(kTokens);
  if (!ntokens) {
    stated.model.vocab_size = keys.required_size("vocab_size");
    stated.padded_vocab_size = {keys.path("vocab_size"), stated.model.vocab_size};
    return;
  }
  check(*ntokens >= 1 && *ntokens <= kMaxSize, "{}: {} has {} elements, expected 1 to {}",
        file.source(), kTokens, *ntokens, kMaxSize);
  const auto count = static_cast<std::int64_t>(*ntokens);
  stated.padded_vocab_size = {fmt::format("the length of {}", kTokens), count};
  const auto types = file.integers("tokenizer.ggml.token_type").value_or(std::vector<int>{});
  std::int64_t used = count;
  while (used > 1 && used <= static_cast<std::int64_t>(types.size()) &&
         types[static_cast<std::size_t>(used) - 1] == static_cast<int>(GgufTokenType::unused)) {
    --used;
  }
  stated.model.vocab_size = used;
}

std::optional<int> token_id(const GgufFile& file, std::string_view name) {
  const auto id = file.integer(fmt::format("tokenizer.ggml.{}_token_id", name), 0,
                               std::numeric_limits<int>::max());
  return id ? std::optional<int>(static_cast<int>(*id)) : std::nullopt;
}

// ---- tensors

struct Renaming {
  std::string_view stored;
  std::string_view canonical;
};

constexpr Renaming kModelNames[] = {{"token_embd.weight", "embedding.weight"},
                                    {"output_norm.weight", "norm_f.weight"},
                                    {"output.weight", "lm_head.weight"}};
// Of a layer, "blk.N." and "layers.N.".
constexpr Renaming kLayerNames[] = {{"attn_norm.weight", "norm.weight"},
                                    {"ssm_in.weight", "mixer.in_proj.weight"},
                                    {"ssm_in.bias", "mixer.in_proj.bias"},
                                    {"ssm_conv1d.weight", "mixer.conv1d.weight"},
                                    {"ssm_conv1d.bias", "mixer.conv1d.bias"},
                                    {"ssm_a", "mixer.A"},
                                    {"ssm_d", "mixer.D"},
                                    {"ssm_out.weight", "mixer.out_proj.weight"},
                                    {"ssm_out.bias", "mixer.out_proj.bias"}};
constexpr Renaming kMamba1Names[] = {{"ssm_x.weight", "mixer.x_proj.weight"},
                                     {"ssm_dt.weight", "mixer.dt_proj.weight"},
                                     {"ssm_dt.bias", "mixer.dt_proj.bias"}};
constexpr Renaming kMamba2Names[] = {{"ssm_dt.bias", "mixer.dt_bias"},
                                     {"ssm_norm.weight", "mixer.norm.weight"}};

template <std::size_t N>
std::string_view renamed(const Renaming (&names)[N], std::string_view stored) {
  for (const Renaming& name : names) {
    if (name.stored == stored) return name.canonical;
  }
  return {};
}

/// Empty for a name that is none of the architecture's.
std::string canonical_gguf_name(std::string_view stored, Architecture architecture) {
  constexpr std::string_view kLayers = "blk.";
  if (!stored.starts_with(kLayers)) return std::string(renamed(kModelNames, stored));
  stored.remove_prefix(kLayers.size());
  const std::size_t digits = stored.find('.');
  if (digits == std::string_view::npos) return {};
  const std::string_view leaf = stored.substr(digits + 1);
  std::string_view name = renamed(kLayerNames, leaf);
  if (name.empty()) {
    name = architecture == Architecture::mamba2 ? renamed(kMamba2Names, leaf)
                                                : renamed(kMamba1Names, leaf);
  }
  return name.empty() ? "" : fmt::format("layers.{}.{}", stored.substr(0, digits), name);
}

/// The shape under the canonical name. Mamba-2's vectors may have further extents.
std::vector<std::int64_t> usual_shape(std::vector<std::int64_t> shape, std::string_view name,
                                      Architecture architecture) {
  if (architecture != Architecture::mamba2) return shape;
  if (name.ends_with(".mixer.A") || name.ends_with(".mixer.D")) {
    if (shape.size() == 2 && shape[1] == 1) shape.pop_back();
  } else if (name.ends_with(".mixer.norm.weight") && shape.size() == 2) {
    shape = {shape[0] * shape[1]};
  }
  return shape;
}

}  // namespace

StatedConfig read_gguf_config(const GgufFile& file) {
  const auto architecture = file.text("general.architecture");
  check(architecture.has_value(), "{} has no general.architecture, expected mamba or mamba2",
        file.source());
  check(architecture == "mamba" || architecture == "mamba2",
        "{}: models of architecture {} are not supported, expected mamba or mamba2", file.source(),
        in_quotes(*architecture));
  const ModelKeys keys(file, *architecture);
  StatedConfig stated;
  stated.source = file.source();
  ModelConfig& model = stated.model;
  model.format = "gguf";
  model.stores_A = true;
  model.d_model = keys.required_size("embedding_length");
  model.n_layer = keys.required_size("block_count");
  model.norm_epsilon = keys.required_epsilon("attention.layer_norm_rms_epsilon");
  stated.d_inner_total = keys.stated_size("ssm.inner_size");
  stated.d_state = keys.stated_size("ssm.state_size");
  stated.d_conv = keys.stated_size("ssm.conv_kernel");
  stated.d_intermediate = {"d_intermediate", 0};
  // An output matrix that is the embedding is left out, or it is the model's own.
  stated.ties_by_default = false;
  if (architecture == "mamba2") {
    read_mamba2(keys, stated);
  } else {
    read_mamba1(file, keys, stated);
  }
  read_vocabulary(file, keys, stated);
  for (const std::string_view name : {"eos", "eot"}) {
    const auto id = token_id(file, name);
    if (id && std::find(model.eos_token_ids.begin(), model.eos_token_ids.end(), *id) ==
                  model.eos_token_ids.end()) {
      model.eos_token_ids.push_back(*id);
    }
  }
  model.bos_token_id = token_id(file, "bos");
  model.pad_token_id = token_id(file, "padding");
  return stated;
}

void add_gguf_tensors(ModelTensors& tensors, const GgufFile& file, Architecture architecture) {
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string name = canonical_gguf_name(tensor.name, architecture);
    check(!name.empty(),
          "{}: tensor {} is no part of a {} model, and without it results would be wrong",
          file.source(), in_quotes(tensor.name), name_of(architecture));
    const auto shape = usual_shape(tensor.shape, name, architecture);
    StoredTensor stored{
        .view = ConstTensorView(tensor.blocks ? nullptr : tensor.data.data(), tensor.dtype, shape),
        .name = std::string(tensor.name),
        .source = file.source()};
    if (tensor.blocks) stored.blocks = StoredBlocks{*tensor.blocks, tensor.data};
    // Two stored names never mean the same tensor, and the container has each name once.
    tensors.emplace(name, std::move(stored));
  }
}

}  // namespace adder
