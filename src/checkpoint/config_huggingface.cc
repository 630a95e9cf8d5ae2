// config.json as the transformers library writes it, for its models mamba, mamba2 and falcon_mamba.

#include <nlohmann/json.hpp>
#include <tuple>

#include "checkpoint/config_fields.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

Architecture architecture_of(const ConfigFields& fields) {
  const std::string type = fields.text("model_type").value_or("");
  if (type == "mamba") return Architecture::mamba1;
  if (type == "mamba2") return Architecture::mamba2;
  if (type == "falcon_mamba") return Architecture::falcon_mamba;
  fail("{}: models of type {} are not supported, expected model_type mamba, mamba2 or falcon_mamba",
       fields.source(), in_quotes(type));
}

/// `intermediate_size` if it is there: the real falcon-mamba says expand 16 beside it, and means
/// the former.
Stated<std::int64_t> stated_d_inner(const ConfigFields& fields, std::int64_t d_model) {
  auto d_inner = fields.stated_size("intermediate_size");
  if (d_inner.value) return d_inner;
  const auto expand = fields.number("expand");
  if (!expand) return d_inner;
  const double product = *expand * static_cast<double>(d_model);
  if (!(product >= 1.0 && product <= 0x1p26)) {
    fields.fail_value("expand", *fields.find("expand"), "a factor that gives 1 to 2^26 channels");
  }
  return {"expand times hidden_size", static_cast<std::int64_t>(product)};
}

/// A number, or "auto" for ceil(d_model / 16).
Stated<std::int64_t> stated_dt_rank(const ConfigFields& fields, std::int64_t d_model) {
  const auto* value = fields.find("time_step_rank");
  if (value != nullptr && *value == "auto") return {"time_step_rank", (d_model + 15) / 16};
  return fields.stated_size("time_step_rank");
}

float required_epsilon(const ConfigFields& fields, std::string_view key,
                       std::optional<double> fallback) {
  const auto value = fields.find(key) != nullptr ? fields.number(key) : fallback;
  check(value.has_value(), "{} has no {}, expected a small positive number", fields.source(), key);
  check(*value >= 0.0 && *value <= 1.0, "{}: {} is {}, expected a number from 0 to 1",
        fields.source(), key, *value);
  return static_cast<float>(*value);
}

void refuse_unsupported(const ConfigFields& fields) {
  const std::string activation = fields.text("hidden_act").value_or("silu");
  check(activation == "silu" || activation == "swish",
        "{}: hidden_act {} is not supported, expected silu", fields.source(),
        in_quotes(activation));
  check(fields.boolean("rms_norm").value_or(true),
        "{}: rms_norm is false, and LayerNorm models are not supported", fields.source());
}

}  // namespace

StatedConfig parse_huggingface_config(const ConfigFields& fields) {
  StatedConfig stated;
  stated.source = fields.source();
  ModelConfig& model = stated.model;
  model.architecture = architecture_of(fields);
  model.format = "huggingface";
  refuse_unsupported(fields);
  model.d_model = fields.required_size("hidden_size");
  model.n_layer = fields.required_size("num_hidden_layers");
  model.vocab_size = fields.required_size("vocab_size");
  stated.padded_vocab_size = {"vocab_size", model.vocab_size};
  stated.d_inner_total = stated_d_inner(fields, model.d_model);
  stated.d_state = fields.stated_size("state_size");
  stated.d_conv = fields.stated_size("conv_kernel");
  stated.conv_bias = fields.stated_boolean("use_conv_bias");
  stated.proj_bias = fields.stated_boolean("use_bias");
  stated.tie_embeddings = fields.stated_boolean("tie_word_embeddings");
  // transformers' Mamba2Config alone has false as its default.
  stated.ties_by_default = model.architecture != Architecture::mamba2;
  stated.d_intermediate = {"d_intermediate", 0};
  model.norm_epsilon = required_epsilon(fields, "layer_norm_epsilon", {});
  model.residual_in_fp32 = fields.boolean("residual_in_fp32").value_or(true);
  model.eos_token_ids = fields.token_ids("eos_token_id");
  model.bos_token_id = fields.token_id("bos_token_id");
  model.pad_token_id = fields.token_id("pad_token_id");

  // time_step_min and time_step_max are the range that dt_bias was initialized in: no limits.
  if (model.architecture == Architecture::mamba2) {
    stated.nheads = fields.stated_size("num_heads");
    stated.headdim = fields.stated_size("head_dim");
    model.ngroups = fields.required_size("n_groups");
    // Says how to cut, not what to compute; absent it is transformers' own default.
    model.chunk_size = fields.size("chunk_size").value_or(256);
    if (const auto limits = fields.limits("time_step_limit")) {
      std::tie(model.dt_min, model.dt_max) = *limits;
    }
    // transformers gates first and normalizes then whatever norm_before_gate says; files exist that
    // say true and were trained the usual way.
    model.gated_norm = true;
  } else {
    stated.dt_rank = stated_dt_rank(fields, model.d_model);
    if (model.architecture == Architecture::falcon_mamba) {
      model.mixer_norm_epsilon = required_epsilon(fields, "mixer_rms_eps", 1e-6);
    }
  }
  return stated;
}

}  // namespace adder
