#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/shard_index.h"
#include "checkpoint/stated_config.h"
#include "checkpoint/test_files.h"

namespace adder {
namespace {

using nlohmann::json;
using test::fails_with;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

StatedConfig parse(const json& config) { return parse_config(config.dump(), "c.json"); }

::testing::AssertionResult refuses_text(const std::string& text, std::vector<std::string> parts) {
  parts.emplace_back("c.json");
  return fails_with([&] { parse_config(text, "c.json"); }, parts);
}
::testing::AssertionResult refuses(const json& config, std::vector<std::string> parts) {
  return refuses_text(config.dump(), std::move(parts));
}

json huggingface(const std::string& type) {
  json config = {{"model_type", type},
                 {"hidden_size", 64},
                 {"num_hidden_layers", 2},
                 {"vocab_size", 256},
                 {"layer_norm_epsilon", 1e-6}};
  if (type == "mamba2") config["n_groups"] = 2;
  return config;
}

json state_spaces(const json& ssm) {
  return {{"d_model", 100}, {"n_layer", 2}, {"vocab_size", 250}, {"ssm_cfg", ssm}};
}

json with(json config, const std::string& key, const json& value) {
  config[key] = value;
  return config;
}
json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

TEST(Config, InfinityInEverySpelling) {
  for (const std::string spelling :
       {"Infinity", "\"Infinity\"", R"({"__float__": "Infinity"})", "\"inf\"", "1e300"}) {
    json config = with(huggingface("mamba2"), "time_step_limit", json::array({0.5, "HERE"}));
    std::string text = config.dump();
    text.replace(text.find("\"HERE\""), 6, spelling);
    const ModelConfig model = parse_config(text, "c.json").model;
    EXPECT_EQ(model.dt_min, 0.5F) << spelling;
    EXPECT_EQ(model.dt_max, kInfinity) << spelling;
  }
  // Words inside of strings are left alone, whatever is escaped around them.
  const json tricky = with(huggingface("mamba2"), "note", "NaN \\\" Infinity \\");
  EXPECT_EQ(parse(tricky).model.d_model, 64);
  for (const json& limits :
       {json::array({1.0, 0.5}), json::array({"-Infinity", 1.0}), json::array({0.0}), json(1.0),
        json::array({0.0, "NaN"}), json::array({"NaN", 1.0}), json::array({0.0, nullptr})}) {
    EXPECT_TRUE(refuses(with(huggingface("mamba2"), "time_step_limit", limits),
                        {"time_step_limit", "expected"}));
  }
}

TEST(Config, HuggingFaceDefaultsOfTheFormat) {
  const StatedConfig stated = parse(huggingface("mamba2"));
  EXPECT_EQ(stated.model.dt_min, 0.0F);
  EXPECT_EQ(stated.model.dt_max, kInfinity);
  EXPECT_EQ(stated.model.norm_epsilon, 1e-6F);
  EXPECT_EQ(stated.model.ngroups, 2);
  EXPECT_FALSE(stated.ties_by_default);  // mamba2 alone
  EXPECT_FALSE(stated.tie_embeddings.value.has_value());
  EXPECT_FALSE(stated.d_state.value.has_value());  // what tensors tell is no one's default
  EXPECT_FALSE(stated.nheads.value.has_value());
  EXPECT_TRUE(parse(huggingface("mamba")).ties_by_default);
  EXPECT_TRUE(parse(huggingface("falcon_mamba")).ties_by_default);
  EXPECT_EQ(parse(huggingface("falcon_mamba")).model.mixer_norm_epsilon, 1e-6F);
  // transformers never reads this key.
  EXPECT_FALSE(parse(with(huggingface("mamba2"), "norm_before_gate", true)).model.norm_before_gate);
}

TEST(Config, HuggingFaceRequiresWhatNothingElseTells) {
  for (const std::string key :
       {"hidden_size", "num_hidden_layers", "vocab_size", "layer_norm_epsilon", "n_groups"}) {
    EXPECT_TRUE(refuses(without(huggingface("mamba2"), key), {"no " + key})) << key;
    EXPECT_TRUE(refuses(with(huggingface("mamba2"), key, nullptr), {"no " + key})) << key;
    EXPECT_TRUE(refuses(with(huggingface("mamba2"), key, -1), {key, "-1"})) << key;
  }
}

TEST(Config, IntermediateSizeWinsOverExpand) {
  json config = with(huggingface("falcon_mamba"), "expand", 16);
  EXPECT_EQ(parse(config).d_inner_total.value, 1024);
  EXPECT_EQ(parse(with(config, "intermediate_size", 128)).d_inner_total.value, 128);
  EXPECT_TRUE(refuses(with(config, "expand", 1e9), {"expand"}));
  EXPECT_TRUE(refuses(with(config, "expand", -2), {"expand"}));
}

TEST(Config, RankMayBeAutomatic) {
  const json config = with(huggingface("mamba"), "hidden_size", 100);
  EXPECT_EQ(parse(with(config, "time_step_rank", "auto")).dt_rank.value, 7);
  EXPECT_EQ(parse(with(config, "time_step_rank", 5)).dt_rank.value, 5);
  EXPECT_EQ(parse(state_spaces({{"dt_rank", "auto"}})).dt_rank.value, 7);
  EXPECT_EQ(parse(state_spaces({{"dt_rank", 9}})).dt_rank.value, 9);
}

TEST(Config, TokenIds) {
  const json config = huggingface("mamba");
  EXPECT_TRUE(parse(config).model.eos_token_ids.empty());
  EXPECT_FALSE(parse(config).model.bos_token_id.has_value());
  EXPECT_EQ(parse(with(config, "eos_token_id", json::array({7, 9}))).model.eos_token_ids,
            (std::vector<int>{7, 9}));
  EXPECT_EQ(parse(with(config, "pad_token_id", 3)).model.pad_token_id, 3);
  EXPECT_TRUE(refuses(with(config, "eos_token_id", -1), {"eos_token_id", "-1"}));
  EXPECT_TRUE(refuses(with(config, "eos_token_id", 4294967296), {"eos_token_id"}));
  EXPECT_TRUE(refuses(with(config, "bos_token_id", json::array({1, 2})), {"bos_token_id"}));
}

TEST(Config, StateSpacesDefaultsOfMambaSsm) {
  const StatedConfig mamba1 = parse(state_spaces(json::object()));
  EXPECT_EQ(mamba1.model.architecture, Architecture::mamba1);
  EXPECT_EQ(mamba1.d_state.value, 16);
  EXPECT_EQ(mamba1.d_conv.value, 4);
  EXPECT_EQ(mamba1.dt_rank.value, 7);
  EXPECT_EQ(mamba1.d_inner_total.value, 200);
  EXPECT_EQ(mamba1.padded_vocab_size.value, 256);  // to a multiple of 8
  EXPECT_EQ(mamba1.tie_embeddings.value, true);
  EXPECT_EQ(parse(without(state_spaces({}), "ssm_cfg")).model.architecture, Architecture::mamba1);

  const StatedConfig mamba2 = parse(state_spaces({{"layer", "Mamba2"}}));
  EXPECT_EQ(mamba2.d_state.value, 128);
  EXPECT_EQ(mamba2.headdim.value, 64);
  EXPECT_EQ(mamba2.model.ngroups, 1);
  EXPECT_EQ(mamba2.model.chunk_size, 256);
  EXPECT_EQ(mamba2.model.dt_min, 0.0F);
  EXPECT_EQ(mamba2.model.dt_max, kInfinity);
  EXPECT_FALSE(mamba2.model.norm_before_gate);
  EXPECT_TRUE(mamba2.model.gated_norm);
  EXPECT_EQ(mamba2.conv_bias.value, true);
  EXPECT_EQ(mamba2.proj_bias.value, false);
  EXPECT_EQ(mamba2.model.norm_epsilon, 1e-5F);
  EXPECT_TRUE(mamba2.model.residual_in_fp32);
  EXPECT_EQ(mamba2.d_intermediate.value, 0);
}

TEST(Config, StateSpacesVariants) {
  const ModelConfig model = parse(state_spaces({{"layer", "Mamba2"},
                                                {"norm_before_gate", true},
                                                {"rmsnorm", false},
                                                {"d_ssm", 128},
                                                {"dt_min", 0.5},
                                                {"dt_max", 0.6}}))
                                .model;
  EXPECT_TRUE(model.norm_before_gate);
  EXPECT_FALSE(model.gated_norm);
  EXPECT_EQ(model.d_mlp, 72);
  EXPECT_EQ(model.dt_min, 0.0F);  // dt_min and dt_max are about initialization
  EXPECT_EQ(model.dt_max, kInfinity);
  EXPECT_TRUE(refuses(state_spaces({{"layer", "Mamba2"}, {"d_ssm", 201}}), {"d_ssm", "200"}));
}

TEST(Config, RefusesModelsItDoesNotRun) {
  const json hf = huggingface("mamba2");
  const json original = state_spaces({{"layer", "Mamba2"}});
  EXPECT_TRUE(refuses(with(hf, "model_type", "zamba2"), {"zamba2", "not supported"}));
  EXPECT_TRUE(refuses(with(hf, "hidden_act", "gelu"), {"hidden_act", "gelu", "not supported"}));
  EXPECT_TRUE(refuses(with(hf, "rms_norm", false), {"LayerNorm", "not supported"}));
  EXPECT_TRUE(refuses(with(original, "rms_norm", false), {"LayerNorm", "not supported"}));
  EXPECT_TRUE(refuses(with(original, "attn_layer_idx", json::array({1})),
                      {"attn_layer_idx", "attention", "not supported"}));
  EXPECT_TRUE(refuses(state_spaces({{"layer", "Mamba3"}}), {"Mamba3", "not supported"}));
  EXPECT_TRUE(refuses(state_spaces({{"headdim", 64}}), {"headdim", "mamba1 layers"}));
  EXPECT_TRUE(refuses(state_spaces({{"layer", "Mamba2"}, {"rope", 1}}), {"rope"}));
  EXPECT_TRUE(refuses(without(original, "n_layer"), {"no n_layer"}));
  EXPECT_TRUE(refuses(without(original, "vocab_size"), {"no vocab_size"}));
  EXPECT_TRUE(refuses(json::object(), {"neither model_type", "nor d_model"}));
}

TEST(Config, RefusesValuesOfTheWrongKind) {
  const json hf = huggingface("mamba2");
  EXPECT_TRUE(refuses(with(hf, "hidden_size", "64"), {"hidden_size", "integer"}));
  EXPECT_TRUE(refuses(with(hf, "hidden_size", 64.0), {"hidden_size", "integer"}));
  EXPECT_TRUE(refuses(with(hf, "hidden_size", 0), {"hidden_size", "integer"}));
  EXPECT_TRUE(refuses(with(hf, "hidden_size", 1LL << 40), {"hidden_size", "67108864"}));
  EXPECT_TRUE(refuses(with(hf, "use_bias", 1), {"use_bias", "true or false"}));
  EXPECT_TRUE(refuses(with(hf, "model_type", 1), {"model_type", "string"}));
  EXPECT_TRUE(refuses(with(hf, "layer_norm_epsilon", "x"), {"layer_norm_epsilon", "number"}));
  EXPECT_TRUE(refuses(with(hf, "layer_norm_epsilon", 2), {"layer_norm_epsilon", "2"}));
  EXPECT_TRUE(refuses(with(state_spaces({}), "ssm_cfg", 3), {"ssm_cfg", "object"}));
  EXPECT_TRUE(refuses(state_spaces({{"d_conv", "4"}}), {"ssm_cfg.d_conv"}));
}

TEST(Config, RefusesBrokenJson) {
  EXPECT_TRUE(refuses_text("", {"not valid JSON"}));
  EXPECT_TRUE(refuses_text("[]", {"array", "expected an object"}));
  EXPECT_TRUE(refuses_text(R"({"model_type": "mamba2",})", {"not valid JSON", "byte"}));
  EXPECT_TRUE(refuses_text(R"({"a": Infinityx})", {"not valid JSON"}));
  EXPECT_TRUE(refuses_text(R"({"a": 1, "a": 2})", {"\"a\" twice"}));
  EXPECT_TRUE(refuses_text(R"({"a": {"b": 1}, "c": {"b": 2, "b": 3}})", {"\"b\" twice"}));
  std::string deep = "{\"a\":";
  deep.append(1'000'000, '[');
  EXPECT_TRUE(refuses_text(deep, {"deeper than 64"}));
  const std::string good = huggingface("mamba2").dump();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(refuses_text(good.substr(0, size), {"JSON"})) << size;
  }
}

TEST(ShardIndex, TakesPlainNamesOnly) {
  const auto index = [](const json& map) { return json{{"weight_map", map}}.dump(); };
  EXPECT_EQ(parse_shard_index(index({{"a", "m-1.safetensors"}}), "i.json").at("a"),
            "m-1.safetensors");
  for (const std::string name : {"../m", "/etc/passwd", "a/b", "..", ".", "", "a\\b"}) {
    EXPECT_TRUE(fails_with(
        [&] {
          parse_shard_index(index({{"a", name}}), "i.json");
        },
        {"i.json", "\"a\"", "plain name"}))
        << name;
  }
  EXPECT_TRUE(fails_with(
      [&] {
        parse_shard_index(index({{"a", std::string("m\0n", 3)}}), "i.json");
      },
      {"i.json", "plain name"}));
  EXPECT_TRUE(fails_with(
      [&] {
        parse_shard_index(index({{"a", 1}}), "i.json");
      },
      {"i.json", "\"a\"", "string"}));
  EXPECT_TRUE(fails_with([&] { parse_shard_index("{}", "i.json"); }, {"i.json", "weight_map"}));
  EXPECT_TRUE(fails_with([&] { parse_shard_index(index(json::object()), "i.json"); },
                         {"i.json", "weight_map"}));
}

}  // namespace
}  // namespace adder
