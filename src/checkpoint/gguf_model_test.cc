// GGUF files of whole models through Checkpoint.

#include "checkpoint/gguf_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"
#include "core/half.h"
#include "tests/support/gguf_builder.h"

namespace adder {
namespace {

using test::fails_with;
using test::GgufBuilder;
using test::ScratchFolder;

/// Distinct values for every tensor.
std::vector<float> values_of(const std::string& name, std::uint64_t count) {
  std::vector<float> out(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(name.size()) + static_cast<float>(i % 251) / 16.0F;
  }
  return out;
}

void add(GgufBuilder& file, const std::string& name, std::vector<std::uint64_t> extents) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : extents) count *= extent;
  file.add_f32(name, std::move(extents), values_of(name, count));
}

void set_tokens(GgufBuilder& file, std::size_t count, std::size_t unused) {
  std::vector<std::string> tokens(count);
  std::vector<std::int32_t> types(count, 1);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = fmt::format("t{}", i);
  for (std::size_t i = count - unused; i < count; ++i) types[i] = 5;
  file.set_texts("tokenizer.ggml.tokens", tokens);
  file.set_i32s("tokenizer.ggml.token_type", types);
}

/// d_model 32, 2 layers, 64 channels in 4 heads, 2 groups of state size 4.
GgufBuilder mamba2_file() {
  GgufBuilder file;
  file.set_text("general.architecture", "mamba2");
  file.set_u32("mamba2.context_length", 1 << 20);
  file.set_u32("mamba2.embedding_length", 32);
  file.set_u32("mamba2.feed_forward_length", 0);
  file.set_u32("mamba2.block_count", 2);
  file.set_u32("mamba2.ssm.conv_kernel", 4);
  file.set_u32("mamba2.ssm.inner_size", 64);
  file.set_u32("mamba2.ssm.state_size", 4);
  file.set_u32("mamba2.ssm.time_step_rank", 4);
  file.set_u32("mamba2.ssm.group_count", 2);
  file.set_f32("mamba2.attention.layer_norm_rms_epsilon", 1e-5F);
  file.set_u32("tokenizer.ggml.bos_token_id", 1);
  file.set_u32("tokenizer.ggml.eos_token_id", 2);
  file.set_u32("tokenizer.ggml.eot_token_id", 3);
  file.set_u32("tokenizer.ggml.padding_token_id", 0);
  set_tokens(file, 16, 3);
  add(file, "token_embd.weight", {32, 16});
  add(file, "output_norm.weight", {32});
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    add(file, layer + "attn_norm.weight", {32});
    add(file, layer + "ssm_in.weight", {32, 148});
    add(file, layer + "ssm_conv1d.weight", {4, 80});
    add(file, layer + "ssm_conv1d.bias", {80});
    add(file, layer + "ssm_dt.bias", {4});
    add(file, layer + "ssm_a", {1, 4});
    add(file, layer + "ssm_d", {1, 4});
    add(file, layer + "ssm_norm.weight", {32, 2});
    add(file, layer + "ssm_out.weight", {64, 32});
  }
  return file;
}

/// d_model 32, 1 layer, 64 channels, state size 4, dt_rank 2.
GgufBuilder mamba1_file() {
  GgufBuilder file;
  file.set_text("general.architecture", "mamba");
  file.set_u32("mamba.embedding_length", 32);
  file.set_u32("mamba.block_count", 1);
  file.set_u32("mamba.vocab_size", 16);
  file.set_u32("mamba.ssm.conv_kernel", 4);
  file.set_u32("mamba.ssm.inner_size", 64);
  file.set_u32("mamba.ssm.state_size", 4);
  file.set_u32("mamba.ssm.time_step_rank", 2);
  file.set_bool("mamba.ssm.dt_b_c_rms", false);
  file.set_f32("mamba.attention.layer_norm_rms_epsilon", 1e-6F);
  add(file, "token_embd.weight", {32, 16});
  add(file, "output_norm.weight", {32});
  add(file, "output.weight", {32, 16});
  add(file, "blk.0.attn_norm.weight", {32});
  add(file, "blk.0.ssm_in.weight", {32, 128});
  add(file, "blk.0.ssm_conv1d.weight", {4, 64});
  add(file, "blk.0.ssm_conv1d.bias", {64});
  add(file, "blk.0.ssm_x.weight", {64, 10});
  add(file, "blk.0.ssm_dt.weight", {2, 64});
  add(file, "blk.0.ssm_dt.bias", {64});
  add(file, "blk.0.ssm_a", {4, 64});
  add(file, "blk.0.ssm_d", {64});
  add(file, "blk.0.ssm_out.weight", {64, 32});
  return file;
}

Checkpoint open(const GgufBuilder& file, const ScratchFolder& folder) {
  return Checkpoint::open(folder.write("model.gguf", file.build()));
}

::testing::AssertionResult refused(const GgufBuilder& file, std::vector<std::string> parts) {
  const ScratchFolder folder;
  parts.emplace_back("model.gguf");
  return fails_with([&] { open(file, folder); }, parts);
}

void expect_values(const Checkpoint& checkpoint, const std::string& name, const std::string& stored,
                   const std::vector<std::int64_t>& shape) {
  const ConstTensorView view = checkpoint.tensor(name);
  EXPECT_EQ(std::vector(view.dims().begin(), view.dims().end()), shape) << name;
  EXPECT_EQ(checkpoint.shape(name), shape) << name;
  const auto expected = values_of(stored, static_cast<std::uint64_t>(view.numel()));
  ASSERT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(std::memcmp(view.data, expected.data(), expected.size() * sizeof(float)), 0) << name;
}

TEST(GgufModel, Mamba2) {
  const ScratchFolder folder;
  const Checkpoint checkpoint = open(mamba2_file(), folder);
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.format, "gguf");
  EXPECT_EQ(config.architecture, Architecture::mamba2);
  EXPECT_EQ(config.d_model, 32);
  EXPECT_EQ(config.n_layer, 2);
  EXPECT_EQ(config.vocab_size, 13);
  EXPECT_EQ(config.padded_vocab_size, 16);
  EXPECT_EQ(config.d_inner, 64);
  EXPECT_EQ(config.d_state, 4);
  EXPECT_EQ(config.d_conv, 4);
  EXPECT_EQ(config.nheads, 4);
  EXPECT_EQ(config.headdim, 16);
  EXPECT_EQ(config.ngroups, 2);
  EXPECT_TRUE(config.gated_norm);
  EXPECT_FALSE(config.d_has_headdim);
  EXPECT_TRUE(config.conv_bias);
  EXPECT_FALSE(config.proj_bias);
  EXPECT_TRUE(config.stores_A);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(config.norm_epsilon, 1e-5F);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int>{2, 3}));
  EXPECT_EQ(config.pad_token_id, 0);

  EXPECT_EQ(checkpoint.names().size(), 2U + 2U * 9U);
  expect_values(checkpoint, "embedding.weight", "token_embd.weight", {16, 32});
  expect_values(checkpoint, "norm_f.weight", "output_norm.weight", {32});
  const std::string mixer = "layers.1.mixer.";
  expect_values(checkpoint, "layers.1.norm.weight", "blk.1.attn_norm.weight", {32});
  expect_values(checkpoint, mixer + "in_proj.weight", "blk.1.ssm_in.weight", {148, 32});
  expect_values(checkpoint, mixer + "conv1d.weight", "blk.1.ssm_conv1d.weight", {80, 4});
  expect_values(checkpoint, mixer + "conv1d.bias", "blk.1.ssm_conv1d.bias", {80});
  expect_values(checkpoint, mixer + "dt_bias", "blk.1.ssm_dt.bias", {4});
  expect_values(checkpoint, mixer + "A", "blk.1.ssm_a", {4});
  expect_values(checkpoint, mixer + "D", "blk.1.ssm_d", {4});
  expect_values(checkpoint, mixer + "norm.weight", "blk.1.ssm_norm.weight", {64});
  expect_values(checkpoint, mixer + "out_proj.weight", "blk.1.ssm_out.weight", {32, 64});
}

TEST(GgufModel, Mamba1AndFalconMamba) {
  for (const bool falcon : {false, true}) {
    GgufBuilder file = mamba1_file();
    file.set_bool("mamba.ssm.dt_b_c_rms", falcon);
    const ScratchFolder folder;
    const Checkpoint checkpoint = open(file, folder);
    const ModelConfig& config = checkpoint.config();
    EXPECT_EQ(config.architecture, falcon ? Architecture::falcon_mamba : Architecture::mamba1);
    EXPECT_EQ(config.mixer_norm_epsilon, falcon ? 1e-6F : 0.0F);
    EXPECT_EQ(config.dt_rank, 2);
    EXPECT_EQ(config.vocab_size, 16);
    EXPECT_FALSE(config.tie_embeddings);
    EXPECT_TRUE(config.eos_token_ids.empty());
    EXPECT_EQ(config.bos_token_id, std::nullopt);
    expect_values(checkpoint, "lm_head.weight", "output.weight", {16, 32});
    const std::string mixer = "layers.0.mixer.";
    expect_values(checkpoint, mixer + "x_proj.weight", "blk.0.ssm_x.weight", {10, 64});
    expect_values(checkpoint, mixer + "dt_proj.weight", "blk.0.ssm_dt.weight", {64, 2});
    expect_values(checkpoint, mixer + "dt_proj.bias", "blk.0.ssm_dt.bias", {64});
    expect_values(checkpoint, mixer + "A", "blk.0.ssm_a", {64, 4});
    expect_values(checkpoint, mixer + "D", "blk.0.ssm_d", {64});
  }
}

TEST(GgufModel, BlocksAreDecodedWhenTheyAreNeeded) {
  const std::string stored = "blk.0.ssm_out.weight";
  const std::string name = "layers.0.mixer.out_proj.weight";
  GgufBuilder file = mamba2_file();
  const std::vector<float> values = values_of(stored, 64 * 32);
  file.tensor(stored).data = test::q8_0_blocks(values);
  file.tensor(stored).type = test::kGgmlQ8_0;
  std::string halves;
  for (const float v : values_of("blk.1.ssm_out.weight", 64 * 32)) halves += test::raw(to_bf16(v));
  file.tensor("blk.1.ssm_out.weight").data = halves;
  file.tensor("blk.1.ssm_out.weight").type = test::kGgmlBf16;
  const ScratchFolder folder;
  const Checkpoint checkpoint = open(file, folder);

  EXPECT_EQ(checkpoint.stored_format(name), "Q8_0");
  EXPECT_EQ(checkpoint.stored_bytes(name), 64 * 32 / 32 * 34);
  EXPECT_EQ(checkpoint.blocks(name).size(), 64U * 32 / 32 * 34);
  EXPECT_EQ(checkpoint.stored_format("layers.1.mixer.out_proj.weight"), "bf16");
  EXPECT_TRUE(checkpoint.blocks("layers.1.mixer.out_proj.weight").empty());
  EXPECT_EQ(checkpoint.stored_bytes("layers.1.mixer.out_proj.weight"), 64 * 32 * 2);
  std::int64_t bytes = 0;
  for (const std::string& each : checkpoint.names()) bytes += checkpoint.stored_bytes(each);
  EXPECT_EQ(checkpoint.total_bytes(), bytes);
  EXPECT_EQ(checkpoint.copy_of(name), nullptr);

  const ConstTensorView view = checkpoint.tensor(name);
  EXPECT_EQ(view.dtype, DType::f32);
  const auto* decoded = static_cast<const float*>(view.data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(decoded[i], values[i], std::abs(values[i]) / 32) << i;
  }
  EXPECT_EQ(checkpoint.tensor(name).data, view.data);
  // What was kept survives the release, and there is a new copy then.
  const auto kept = checkpoint.copy_of(name);
  ASSERT_NE(kept, nullptr);
  const std::vector<float> before(decoded, decoded + values.size());
  checkpoint.release(name);
  EXPECT_EQ(checkpoint.copy_of(name), nullptr);
  EXPECT_EQ(std::memcmp(decoded, before.data(), before.size() * sizeof(float)), 0);
  EXPECT_NE(checkpoint.tensor(name).data, view.data);
  EXPECT_EQ(std::memcmp(checkpoint.tensor(name).data, before.data(), before.size() * sizeof(float)),
            0);
}

TEST(GgufModel, PathsThatMeanAFile) {
  const ScratchFolder folder;
  const std::string bytes = mamba2_file().build();
  folder.write("model.gguf", bytes);
  EXPECT_EQ(Checkpoint::open(folder.path()).config().format, "gguf");
  EXPECT_EQ(Checkpoint::open(folder.path()).files().at(0), folder.path() / "model.gguf");
  EXPECT_EQ(Checkpoint::open(folder.path()).directory(), folder.path());
  EXPECT_EQ(Checkpoint::open(folder.write("model.bin", bytes)).config().format, "gguf");
  folder.write("other.gguf", bytes);
  EXPECT_TRUE(fails_with([&] { Checkpoint::open(folder.path()); }, {"more than one GGUF file"}));
  // Other weights come first.
  folder.write("model.safetensors", "");
  EXPECT_TRUE(fails_with([&] { Checkpoint::open(folder.path()); }, {"config.json is missing"}));
  folder.write("broken.gguf", "not a model");
  EXPECT_TRUE(fails_with([&] { Checkpoint::open(folder.path() / "broken.gguf"); },
                         {"broken.gguf", "GGUF"}));
  const ScratchFolder empty;
  EXPECT_TRUE(fails_with([&] { Checkpoint::open(empty.path()); }, {"has no weights"}));
}

TEST(GgufModel, RefusesBadMetadata) {
  const GgufBuilder good = mamba2_file();
  const auto without = [&](const std::string& key) {
    GgufBuilder file = good;
    file.erase(key);
    return refused(file, {key});
  };
  for (const auto& [key, value] : good.values) {
    if (key.starts_with("mamba2.ssm.") || key.starts_with("mamba2.attention")) {
      EXPECT_TRUE(without(key)) << key;
    }
  }
  EXPECT_TRUE(without("general.architecture"));
  EXPECT_TRUE(without("mamba2.embedding_length"));
  EXPECT_TRUE(without("mamba2.block_count"));
  const auto with = [&](const auto& change, std::vector<std::string> parts) {
    GgufBuilder file = good;
    change(file);
    return refused(file, std::move(parts));
  };
  EXPECT_TRUE(with([](auto& f) { f.erase("tokenizer.ggml.tokens"); }, {"mamba2.vocab_size"}));
  EXPECT_TRUE(
      with([](auto& f) { f.set_text("general.architecture", "llama"); }, {"\"llama\"", "mamba2"}));
  EXPECT_TRUE(
      with([](auto& f) { f.set_text("mamba2.block_count", "2"); }, {"block_count", "text"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.block_count", 0); }, {"block_count", "0"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.embedding_length", ~0U); },
                   {"embedding_length", "4294967295"}));
  EXPECT_TRUE(with([](auto& f) { f.set_f32("mamba2.attention.layer_norm_rms_epsilon", -1.0F); },
                   {"layer_norm_rms_epsilon", "-1"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("tokenizer.ggml.eos_token_id", ~0U); },
                   {"eos_token_id", "4294967295"}));
  EXPECT_TRUE(with([](auto& f) { set_tokens(f, 17, 0); },
                   {"length of tokenizer.ggml.tokens is 17", "16 rows"}));
  EXPECT_TRUE(with([](auto& f) { set_tokens(f, 0, 0); }, {"tokenizer.ggml.tokens", "0 elements"}));
}

TEST(GgufModel, RefusesTensorsThatContradict) {
  const auto with = [](const auto& change, std::vector<std::string> parts) {
    GgufBuilder file = mamba2_file();
    change(file);
    return refused(file, std::move(parts));
  };
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.ssm.inner_size", 32); },
                   {"mamba2.ssm.inner_size is 32", "blk.0.ssm_out.weight", "64 columns"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.ssm.time_step_rank", 8); },
                   {"mamba2.ssm.time_step_rank is 8", "blk.0.ssm_a", "4 heads"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.ssm.state_size", 8); },
                   {"mamba2.ssm.state_size is 8", "ssm_conv1d"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.ssm.conv_kernel", 3); }, {"4 taps"}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.block_count", 3); }, {"layers.2."}));
  EXPECT_TRUE(with([](auto& f) { f.set_u32("mamba2.block_count", 1); }, {"blk.1.", "no part"}));
  EXPECT_TRUE(with([](auto& f) { f.tensor("blk.1.ssm_a").name = "blk.1.ssm_b"; },
                   {"blk.1.ssm_b", "no part of a mamba2 model"}));
  EXPECT_TRUE(with([](auto& f) { f.tensor("blk.1.ssm_a").name = "blk.1"; }, {"\"blk.1\""}));
  EXPECT_TRUE(with([](auto& f) { f.tensor("blk.1.ssm_a").name = "layers.1.mixer.A"; },
                   {"layers.1.mixer.A", "no part"}));
  EXPECT_TRUE(with([](auto& f) { f.tensor("blk.1.ssm_a").extents = {4, 1}; }, {"blk.1.ssm_a"}));
  EXPECT_TRUE(with(
      [](auto& f) {
        std::erase_if(f.tensors, [](const auto& t) { return t.name == "blk.1.ssm_norm.weight"; });
      },
      {"layers.1.mixer.norm.weight"}));
}

}  // namespace
}  // namespace adder
