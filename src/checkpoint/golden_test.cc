// Every reference checkpoint and the bundled model open with the right configuration and shapes.

#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/checkpoint.h"
#include "core/half.h"

namespace adder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Checkpoint golden(const std::string& name) { return Checkpoint::open("tests/data/golden/" + name); }

std::vector<std::int64_t> shape_of(const Checkpoint& checkpoint, std::string_view name) {
  const ConstTensorView view = checkpoint.tensor(name);
  const auto dims = view.dims();
  return {dims.begin(), dims.end()};
}

using Shape = std::vector<std::int64_t>;

TEST(Golden, HuggingFaceMamba2) {
  const Checkpoint checkpoint = golden("hf-mamba2-tiny");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.architecture, Architecture::mamba2);
  EXPECT_EQ(config.format, "huggingface");
  EXPECT_EQ(config.d_model, 64);
  EXPECT_EQ(config.n_layer, 3);
  EXPECT_EQ(config.vocab_size, 256);
  EXPECT_EQ(config.padded_vocab_size, 256);
  EXPECT_EQ(config.d_inner, 128);
  EXPECT_EQ(config.d_state, 32);
  EXPECT_EQ(config.d_conv, 4);
  EXPECT_EQ(config.nheads, 8);
  EXPECT_EQ(config.headdim, 16);
  EXPECT_EQ(config.ngroups, 1);
  EXPECT_EQ(config.chunk_size, 16);
  EXPECT_EQ(config.dt_min, 0.0F);
  EXPECT_EQ(config.dt_max, kInfinity);
  EXPECT_FALSE(config.norm_before_gate);
  EXPECT_TRUE(config.gated_norm);
  EXPECT_FALSE(config.d_has_headdim);
  EXPECT_EQ(config.d_mlp, 0);
  EXPECT_EQ(config.d_intermediate, 0);
  EXPECT_TRUE(config.conv_bias);
  EXPECT_FALSE(config.proj_bias);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(config.norm_epsilon, 1e-5F);
  EXPECT_TRUE(config.residual_in_fp32);
  EXPECT_EQ(config.eos_token_ids, std::vector<int>{2});
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_EQ(config.pad_token_id, 1);
  EXPECT_EQ(shape_of(checkpoint, "embedding.weight"), (Shape{256, 64}));
  EXPECT_EQ(shape_of(checkpoint, "layers.2.mixer.in_proj.weight"), (Shape{328, 64}));
  EXPECT_EQ(shape_of(checkpoint, "layers.0.mixer.conv1d.weight"), (Shape{192, 4}));
  EXPECT_EQ(checkpoint.names().size(), 3u * 9 + 2);
  EXPECT_FALSE(checkpoint.has("lm_head.weight"));
}

TEST(Golden, HuggingFaceMamba1) {
  const Checkpoint checkpoint = golden("hf-mamba1-tiny");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.architecture, Architecture::mamba1);
  EXPECT_EQ(config.d_inner, 128);
  EXPECT_EQ(config.d_state, 16);
  EXPECT_EQ(config.d_conv, 4);
  EXPECT_EQ(config.dt_rank, 4);
  EXPECT_EQ(config.mixer_norm_epsilon, 0.0F);
  EXPECT_EQ(config.nheads, 0);
  EXPECT_EQ(config.dt_max, kInfinity);  // time_step_max is about initialization
  EXPECT_EQ(shape_of(checkpoint, "layers.1.mixer.x_proj.weight"), (Shape{36, 128}));
  EXPECT_EQ(shape_of(checkpoint, "layers.1.mixer.A_log"), (Shape{128, 16}));
}

TEST(Golden, FalconMamba) {
  const Checkpoint checkpoint = golden("hf-falcon-mamba-tiny");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.architecture, Architecture::falcon_mamba);
  EXPECT_EQ(config.n_layer, 2);
  EXPECT_EQ(config.d_inner, 128);
  EXPECT_EQ(config.dt_rank, 4);
  EXPECT_EQ(config.mixer_norm_epsilon, 1e-6F);
}

TEST(Golden, StateSpacesMamba2) {
  const Checkpoint checkpoint = golden("mamba2-original");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.architecture, Architecture::mamba2);
  EXPECT_EQ(config.format, "state-spaces");
  EXPECT_EQ(config.vocab_size, 250);
  EXPECT_EQ(config.padded_vocab_size, 256);
  EXPECT_EQ(config.d_inner, 128);
  EXPECT_EQ(config.nheads, 8);
  EXPECT_EQ(config.headdim, 16);
  EXPECT_EQ(config.d_state, 32);
  EXPECT_EQ(config.chunk_size, 32);
  EXPECT_EQ(config.dt_min, 0.0F);
  EXPECT_EQ(config.dt_max, kInfinity);
  EXPECT_EQ(config.norm_epsilon, 1e-5F);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_TRUE(config.conv_bias);
  EXPECT_FALSE(checkpoint.has("lm_head.weight"));  // stored, and dropped because it is tied
  EXPECT_EQ(shape_of(checkpoint, "embedding.weight"), (Shape{256, 64}));
}

TEST(Golden, StateSpacesGroups) {
  const Checkpoint checkpoint = golden("mamba2-original-groups");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.ngroups, 4);
  EXPECT_EQ(config.d_state, 16);
  EXPECT_EQ(config.dt_min, 0.01F);
  EXPECT_EQ(config.dt_max, 0.2F);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(shape_of(checkpoint, "lm_head.weight"), (Shape{256, 64}));
  EXPECT_EQ(shape_of(checkpoint, "layers.0.mixer.conv1d.weight"), (Shape{256, 4}));
}

TEST(Golden, StateSpacesHalf) {
  const Checkpoint checkpoint = golden("mamba2-original-fp16");
  EXPECT_EQ(checkpoint.config().chunk_size, 256);  // mamba_ssm's default
  EXPECT_EQ(checkpoint.tensor("layers.0.mixer.in_proj.weight").dtype, DType::f16);
}

TEST(Golden, StateSpacesMamba1) {
  const ModelConfig config = golden("mamba1-original").config();
  EXPECT_EQ(config.architecture, Architecture::mamba1);  // what a missing layer means
  EXPECT_EQ(config.vocab_size, 250);
  EXPECT_EQ(config.padded_vocab_size, 256);
  EXPECT_EQ(config.dt_rank, 4);
  EXPECT_EQ(config.d_state, 16);
}

TEST(Golden, BundledModelInShards) {
  const Checkpoint checkpoint = Checkpoint::open("models/books-11m");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.d_model, 384);
  EXPECT_EQ(config.n_layer, 10);
  EXPECT_EQ(config.nheads, 12);
  EXPECT_EQ(config.headdim, 64);
  EXPECT_EQ(config.d_state, 64);
  EXPECT_EQ(config.vocab_size, 4096);
  EXPECT_EQ(config.dt_max, kInfinity);  // a bare Infinity in the file
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.parameter_count(), 11014888);
  EXPECT_EQ(checkpoint.total_bytes(), 22030496);
  EXPECT_EQ(checkpoint.tensor("layers.9.mixer.A_log").dtype, DType::f32);
  EXPECT_EQ(checkpoint.tensor("layers.9.mixer.out_proj.weight").dtype, DType::bf16);
}

}  // namespace
}  // namespace adder
