// config.json of the original state-spaces repository (mamba_ssm). Its defaults are part of the
// format: files leave out what mamba_ssm's constructors fill in.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>

#include "checkpoint/config_fields.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

using nlohmann::json;

// Keyword arguments of mamba_ssm's layers. Those that only initialize or pick an implementation are
// listed too: any other key would change the model in a way unknown here.
constexpr std::string_view kMamba1Keys[] = {
    "layer",   "d_state",  "d_conv",        "expand",    "dt_rank", "dt_min",       "dt_max",
    "dt_init", "dt_scale", "dt_init_floor", "conv_bias", "bias",    "use_fast_path"};
constexpr std::string_view kMamba2Keys[] = {
    "layer",      "d_state",          "d_conv",           "conv_init",  "expand",  "headdim",
    "d_ssm",      "ngroups",          "A_init_range",     "D_has_hdim", "rmsnorm", "dt_min",
    "dt_max",     "dt_init_floor",    "norm_before_gate", "dt_limit",   "bias",    "conv_bias",
    "chunk_size", "use_mem_eff_path", "sequence_parallel"};

constexpr float kEpsilon = 1e-5F;

Architecture architecture_of(const ConfigFields& ssm) {
  const std::string layer = ssm.text("layer").value_or("Mamba1");
  if (layer == "Mamba1") return Architecture::mamba1;
  if (layer == "Mamba2") return Architecture::mamba2;
  fail("{}: ssm_cfg.layer {} is not supported, expected Mamba1 or Mamba2", ssm.source(),
       in_quotes(layer));
}

void refuse_unsupported(const ConfigFields& fields, const ConfigFields& ssm, Architecture which) {
  const json* attention = fields.find("attn_layer_idx");
  check(attention == nullptr || (attention->is_array() && attention->empty()),
        "{}: attn_layer_idx is not empty, and models with attention layers are not supported",
        fields.source());
  check(fields.boolean("rms_norm").value_or(true),
        "{}: rms_norm is false, and LayerNorm models are not supported", fields.source());
  const std::span<const std::string_view> known =
      which == Architecture::mamba1 ? std::span<const std::string_view>(kMamba1Keys)
                                    : std::span<const std::string_view>(kMamba2Keys);
  for (const auto& [key, value] : ssm.object().items()) {
    check(std::find(known.begin(), known.end(), key) != known.end(),
          "{}: ssm_cfg has the key {}, which {} layers do not have", fields.source(),
          in_quotes(key), name_of(which));
  }
}

Stated<std::int64_t> with_default(const ConfigFields& fields, std::string_view key,
                                  std::int64_t value) {
  const auto stated = fields.size(key);
  return {fields.path(key) + (stated ? "" : " (by default)"), stated.value_or(value)};
}

/// expand · d_model channels.
Stated<std::int64_t> stated_d_inner(const ConfigFields& ssm, std::int64_t d_model) {
  const double product = ssm.number("expand").value_or(2.0) * static_cast<double>(d_model);
  if (!(product >= 1.0 && product <= 0x1p26)) {
    fail("{}: ssm_cfg.expand times d_model is {}, expected 1 to 2^26 channels", ssm.source(),
         product);
  }
  return {"ssm_cfg.expand times d_model", static_cast<std::int64_t>(product)};
}

void parse_mamba1(const ConfigFields& ssm, StatedConfig& stated) {
  stated.d_state = with_default(ssm, "d_state", 16);
  const json* dt_rank = ssm.find("dt_rank");
  if (dt_rank == nullptr || *dt_rank == "auto") {
    stated.dt_rank = {"ssm_cfg.dt_rank (auto)", (stated.model.d_model + 15) / 16};
  } else {
    stated.dt_rank = ssm.stated_size("dt_rank");
  }
}

void parse_mamba2(const ConfigFields& ssm, StatedConfig& stated) {
  ModelConfig& model = stated.model;
  stated.d_state = with_default(ssm, "d_state", 128);
  stated.headdim = with_default(ssm, "headdim", 64);
  stated.d_has_headdim = {ssm.path("D_has_hdim"), ssm.boolean("D_has_hdim").value_or(false)};
  model.ngroups = ssm.size("ngroups").value_or(1);
  model.chunk_size = ssm.size("chunk_size").value_or(256);
  model.gated_norm = ssm.boolean("rmsnorm").value_or(true);
  model.norm_before_gate = ssm.boolean("norm_before_gate").value_or(false);
  // dt_min and dt_max are the range that dt_bias was initialized in: no limits.
  if (const auto limits = ssm.limits("dt_limit")) std::tie(model.dt_min, model.dt_max) = *limits;
  const std::int64_t total = *stated.d_inner_total.value;
  if (const auto d_ssm = ssm.size("d_ssm")) {
    check(*d_ssm <= total, "{}: ssm_cfg.d_ssm is {}, expected at most {}, which is {}",
          ssm.source(), *d_ssm, total, stated.d_inner_total.key);
    model.d_mlp = total - *d_ssm;
  }
}

}  // namespace

StatedConfig parse_state_spaces_config(const ConfigFields& fields) {
  static const json kEmpty = json::object();
  const json* ssm_object = fields.find("ssm_cfg");
  if (ssm_object == nullptr) ssm_object = &kEmpty;
  if (!ssm_object->is_object()) fields.fail_value("ssm_cfg", *ssm_object, "an object");
  const ConfigFields ssm(*ssm_object, fields.source(), "ssm_cfg.");

  StatedConfig stated;
  stated.source = fields.source();
  ModelConfig& model = stated.model;
  model.architecture = architecture_of(ssm);
  model.format = "state-spaces";
  refuse_unsupported(fields, ssm, model.architecture);
  model.d_model = fields.required_size("d_model");
  model.n_layer = fields.required_size("n_layer");
  model.vocab_size = fields.required_size("vocab_size");
  const std::int64_t multiple = fields.size("pad_vocab_size_multiple").value_or(8);
  stated.padded_vocab_size = {"vocab_size, padded to a multiple of pad_vocab_size_multiple,",
                              (model.vocab_size + multiple - 1) / multiple * multiple};
  stated.d_intermediate = {"d_intermediate", fields.size("d_intermediate", 0).value_or(0)};
  stated.tie_embeddings = {"tie_embeddings", fields.boolean("tie_embeddings").value_or(true)};
  model.residual_in_fp32 = fields.boolean("residual_in_fp32").value_or(true);
  model.norm_epsilon = kEpsilon;
  stated.d_inner_total = stated_d_inner(ssm, model.d_model);
  stated.d_conv = with_default(ssm, "d_conv", 4);
  stated.conv_bias = {ssm.path("conv_bias"), ssm.boolean("conv_bias").value_or(true)};
  stated.proj_bias = {ssm.path("bias"), ssm.boolean("bias").value_or(false)};
  if (model.architecture == Architecture::mamba2) {
    parse_mamba2(ssm, stated);
  } else {
    parse_mamba1(ssm, stated);
  }
  return stated;
}

}  // namespace adder
