#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/model_tensors.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_files.h"
#include "core/tensor.h"

namespace adder {
namespace {

using nlohmann::json;
using test::fails_with;
using test::ScratchFolder;

/// A small Mamba-2 checkpoint on disk that tests bend: configuration, and tensors by stored name.
struct Recipe {
  json config;
  std::map<std::string, Tensor> tensors;

  void add(const std::string& name, const std::vector<std::int64_t>& shape,
           DType dtype = DType::f32) {
    Tensor tensor = Tensor::empty(dtype, shape);
    auto* bytes = static_cast<unsigned char*>(tensor.view.data);
    for (std::int64_t i = 0; i < tensor.view.size_bytes(); ++i) {
      bytes[i] = static_cast<unsigned char>(i * 7 + static_cast<std::int64_t>(name.size()));
    }
    tensors[name] = std::move(tensor);
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }
  void add_prefix(const std::string& prefix) {
    std::map<std::string, Tensor> renamed;
    for (auto& [name, tensor] : tensors) renamed[prefix + name] = tensor;
    tensors = std::move(renamed);
  }

  std::vector<NamedTensor> named() const {
    std::vector<NamedTensor> out;
    for (const auto& [name, tensor] : tensors) out.push_back({name, tensor.view});
    return out;
  }
  void write(const ScratchFolder& folder, const std::string& file = "model.safetensors") const {
    folder.write("config.json", config.dump());
    write_safetensors(folder.path() / file, named());
  }
  /// The error of opening it.
  ::testing::AssertionResult refused(std::vector<std::string> parts) const {
    const ScratchFolder folder;
    write(folder);
    parts.push_back(folder.path().string());
    return fails_with([&] { Checkpoint::open(folder.path()); }, parts);
  }
};

/// The stored tensors of a model of this configuration, convolutions in three dimensions.
Recipe recipe_of(const json& config, const ModelConfig& model) {
  Recipe recipe{.config = config, .tensors = {}};
  for_each_tensor(model, [&](const std::string& name, std::vector<std::int64_t> shape) {
    if (name.ends_with("conv1d.weight")) shape.insert(shape.begin() + 1, 1);
    if (name.ends_with(".D") && shape.size() == 2) shape = {shape[0] * shape[1]};
    recipe.add(name == "lm_head.weight" ? name : "backbone." + name, shape);
  });
  return recipe;
}

ModelConfig small_model() {
  ModelConfig model;
  model.d_model = 8;
  model.n_layer = 2;
  model.padded_vocab_size = 16;
  model.d_inner = 16;
  model.d_state = 4;
  model.d_conv = 4;
  model.nheads = 4;
  model.headdim = 4;
  model.ngroups = 2;
  model.gated_norm = true;
  model.conv_bias = true;
  return model;
}

Recipe huggingface_recipe() {
  ModelConfig model = small_model();
  model.tie_embeddings = false;
  Recipe recipe = recipe_of({{"model_type", "mamba2"},
                             {"hidden_size", 8},
                             {"num_hidden_layers", 2},
                             {"vocab_size", 16},
                             {"state_size", 4},
                             {"expand", 2},
                             {"num_heads", 4},
                             {"head_dim", 4},
                             {"n_groups", 2},
                             {"conv_kernel", 4},
                             {"use_bias", false},
                             {"use_conv_bias", true},
                             {"layer_norm_epsilon", 1e-5},
                             {"tie_word_embeddings", false}},
                            model);
  recipe.rename("backbone.embedding.weight", "backbone.embeddings.weight");
  return recipe;
}

json state_spaces_config(const json& more = json::object()) {
  json ssm = {{"layer", "Mamba2"}, {"d_state", 4}, {"headdim", 4}, {"ngroups", 2}};
  ssm.update(more);
  return {{"d_model", 8}, {"n_layer", 2}, {"vocab_size", 13}, {"ssm_cfg", ssm}};
}

bool same_elements(const ConstTensorView& a, const ConstTensorView& b) {
  return a.dtype == b.dtype && a.numel() == b.numel() &&
         std::memcmp(a.data, b.data, static_cast<std::size_t>(a.size_bytes())) == 0;
}

TEST(Checkpoint, HidesPrefixesAndSpellings) {
  const Recipe plain = huggingface_recipe();
  for (const std::string prefix : {"", "model."}) {
    Recipe recipe = plain;
    recipe.add_prefix(prefix);  // Codestral's: model.backbone.layers..., model.lm_head.weight
    const ScratchFolder folder;
    recipe.write(folder);
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_TRUE(same_elements(checkpoint.tensor("embedding.weight"),
                              plain.tensors.at("backbone.embeddings.weight").view));
    EXPECT_TRUE(same_elements(checkpoint.tensor("lm_head.weight"),
                              plain.tensors.at("lm_head.weight").view));
    EXPECT_TRUE(same_elements(checkpoint.tensor("layers.1.mixer.conv1d.weight"),
                              plain.tensors.at("backbone.layers.1.mixer.conv1d.weight").view));
    EXPECT_EQ(checkpoint.tensor("layers.1.mixer.conv1d.weight").rank, 2);
    EXPECT_TRUE(fails_with([&] { checkpoint.tensor("backbone.norm_f.weight"); },
                           {folder.path().string(), "backbone.norm_f.weight"}));
  }
  EXPECT_EQ(canonical_name("model.layers.0.norm.weight"), "layers.0.norm.weight");
  Recipe twice = plain;
  twice.add("model.backbone.norm_f.weight", {8});
  EXPECT_TRUE(twice.refused({"model.backbone.norm_f.weight", "the same as"}));
}

TEST(Checkpoint, OpensFilesAndFolders) {
  const ScratchFolder folder;
  huggingface_recipe().write(folder);
  huggingface_recipe().write(folder, "consolidated.safetensors");
  for (const std::string name :
       {"", "model.safetensors", "consolidated.safetensors", "config.json"}) {
    EXPECT_EQ(Checkpoint::open(folder.path() / name).config().nheads, 4) << name;
  }
  EXPECT_EQ(Checkpoint::open(folder.path() / "consolidated.safetensors").files().at(0),
            folder.path() / "consolidated.safetensors");
}

TEST(Checkpoint, OpensShards) {
  const Recipe recipe = huggingface_recipe();
  const std::vector<NamedTensor> all = recipe.named();
  json map;
  std::array<std::vector<NamedTensor>, 2> halves;
  for (std::size_t i = 0; i < all.size(); ++i) {
    halves[i % 2].push_back(all[i]);
    map[all[i].name] = i % 2 == 0 ? "s-1.safetensors" : "s-2.safetensors";
  }
  const ScratchFolder folder;
  folder.write("config.json", recipe.config.dump());
  write_safetensors(folder.path() / "s-1.safetensors", halves[0]);
  write_safetensors(folder.path() / "s-2.safetensors", halves[1]);
  const auto index = folder.write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
  const auto open = [&] { Checkpoint::open(folder.path()); };
  EXPECT_EQ(Checkpoint::open(folder.path()).names().size(), all.size());
  EXPECT_EQ(Checkpoint::open(index).files().size(), 2u);

  json wrong = map;
  wrong[all[0].name] = "s-2.safetensors";
  folder.write("model.safetensors.index.json", json{{"weight_map", wrong}}.dump());
  EXPECT_TRUE(fails_with(open, {index.string(), all[0].name, "s-2.safetensors"}));
  wrong = map;
  wrong["more"] = "s-1.safetensors";
  folder.write("model.safetensors.index.json", json{{"weight_map", wrong}}.dump());
  EXPECT_TRUE(fails_with(open, {index.string(), "\"more\"", "s-1.safetensors"}));
  wrong["more"] = "../s-1.safetensors";
  folder.write("model.safetensors.index.json", json{{"weight_map", wrong}}.dump());
  EXPECT_TRUE(fails_with(open, {index.string(), "\"more\"", "plain name"}));

  folder.write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
  write_safetensors(folder.path() / "s-2.safetensors", all);
  EXPECT_TRUE(fails_with(open, {"s-2.safetensors", "the same as", "s-1.safetensors"}));
  std::filesystem::remove(folder.path() / "s-2.safetensors");
  EXPECT_TRUE(fails_with(open, {index.string(), "s-2.safetensors", "missing"}));
}

TEST(Checkpoint, OpensHuggingFaceWithPyTorchWeights) {
  const ScratchFolder folder;
  folder.copy_from("tests/data/golden/mamba2-original");
  std::filesystem::remove(folder.path() / "expected.safetensors");
  folder.write("config.json", R"({"model_type": "mamba2", "hidden_size": 64, "vocab_size": 256,
      "num_hidden_layers": 3, "n_groups": 1, "layer_norm_epsilon": 1e-5})");
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.config().d_state, 32);
  EXPECT_FALSE(checkpoint.config().tie_embeddings);  // mamba2's default, and a matrix is there
}

TEST(Checkpoint, OpensStateSpacesWithSafetensors) {
  Recipe recipe = huggingface_recipe();
  recipe.rename("backbone.embeddings.weight", "backbone.embedding.weight");
  recipe.config = state_spaces_config();
  const ScratchFolder folder;
  recipe.write(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.config().vocab_size, 13);
  EXPECT_EQ(checkpoint.config().padded_vocab_size, 16);
  EXPECT_FALSE(checkpoint.has("lm_head.weight"));
}

TEST(Checkpoint, DecidesAboutTiedEmbeddings) {
  const auto tied = [](std::optional<bool> stated, bool stored) {
    Recipe recipe = huggingface_recipe();
    recipe.config.erase("tie_word_embeddings");
    if (stated) recipe.config["tie_word_embeddings"] = *stated;
    if (!stored) recipe.tensors.erase("lm_head.weight");
    const ScratchFolder folder;
    recipe.write(folder);
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_EQ(checkpoint.has("lm_head.weight"), !checkpoint.config().tie_embeddings);
    return checkpoint.config().tie_embeddings;
  };
  EXPECT_TRUE(tied(true, true));
  EXPECT_TRUE(tied(true, false));
  EXPECT_FALSE(tied(false, true));
  EXPECT_TRUE(tied({}, false));
  EXPECT_FALSE(tied({}, true));
  Recipe recipe = huggingface_recipe();
  recipe.tensors.erase("lm_head.weight");
  EXPECT_TRUE(recipe.refused({"lm_head.weight"}));
}

TEST(Checkpoint, OpensEveryVariantOfTheMixer) {
  ModelConfig model = small_model();
  model.d_mlp = 4;
  model.d_inner = 12;
  model.nheads = 6;
  model.headdim = 2;
  model.gated_norm = false;
  model.conv_bias = false;
  model.proj_bias = true;
  model.d_has_headdim = true;
  model.d_intermediate = 128;
  model.mlp_bias = true;
  model.tie_embeddings = true;
  Recipe recipe = recipe_of(state_spaces_config({{"d_ssm", 12},
                                                 {"headdim", 2},
                                                 {"rmsnorm", false},
                                                 {"conv_bias", false},
                                                 {"bias", true},
                                                 {"D_has_hdim", true}}),
                            model);
  recipe.config["d_intermediate"] = 100;  // mamba_ssm rounds up to 128
  const ScratchFolder folder;
  recipe.write(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const ModelConfig& got = checkpoint.config();
  EXPECT_EQ(got.d_mlp, 4);
  EXPECT_EQ(got.d_inner, 12);
  EXPECT_EQ(got.nheads, 6);
  EXPECT_EQ(got.d_state, 4);
  EXPECT_EQ(got.d_intermediate, 128);
  EXPECT_TRUE(got.mlp_bias);
  EXPECT_TRUE(got.proj_bias);
  EXPECT_FALSE(got.conv_bias);
  EXPECT_FALSE(got.gated_norm);
  const ConstTensorView d = checkpoint.tensor("layers.1.mixer.D");
  ASSERT_EQ(d.rank, 2);
  EXPECT_EQ(d.dim(0), 6);
  EXPECT_EQ(d.dim(1), 2);
  EXPECT_TRUE(d.is_contiguous());
  EXPECT_EQ(checkpoint.tensor("layers.1.mlp.fc1.weight").dim(0), 256);
  EXPECT_FALSE(checkpoint.has("layers.0.mixer.norm.weight"));
}

TEST(Checkpoint, NamesBothSidesOfAContradiction) {
  const auto contradicts = [](const std::string& key, const json& value,
                              std::vector<std::string> parts) {
    Recipe recipe = huggingface_recipe();
    recipe.config[key] = value;
    parts.insert(parts.end(), {key, "config.json", "model.safetensors"});
    return recipe.refused(parts);
  };
  EXPECT_TRUE(contradicts("num_heads", 8, {"is 8", "layers.0.mixer.A_log", "has 4 heads"}));
  EXPECT_TRUE(contradicts("head_dim", 8, {"is 8", "has 4 channels per head"}));
  EXPECT_TRUE(contradicts("expand", 3, {"is 24", "out_proj.weight", "has 16 columns"}));
  EXPECT_TRUE(contradicts("state_size", 8, {"is 8", "conv1d.weight", "has 4"}));
  EXPECT_TRUE(contradicts("conv_kernel", 3, {"is 3", "conv1d.weight", "has 4 taps"}));
  EXPECT_TRUE(contradicts("vocab_size", 17, {"is 17", "embeddings.weight", "has 16 rows"}));
  EXPECT_TRUE(contradicts("use_conv_bias", false, {"is false", "has the tensor", "conv1d.bias"}));
  EXPECT_TRUE(contradicts("use_bias", true, {"is true", "has no tensor", "in_proj.bias"}));
  Recipe recipe = huggingface_recipe();
  recipe.config["hidden_size"] = 9;
  recipe.config["expand"] = nullptr;
  EXPECT_TRUE(recipe.refused({"embeddings.weight", "(16, 8)", "(16, 9)"}));
  recipe = huggingface_recipe();
  recipe.config["n_groups"] = 3;
  EXPECT_TRUE(recipe.refused({"32 channels", "3 groups"}));
  recipe = huggingface_recipe();
  recipe.config["num_hidden_layers"] = 3;
  EXPECT_TRUE(recipe.refused({"layers.2.norm.weight", "3 layers"}));
  recipe.config["num_hidden_layers"] = 1;
  EXPECT_TRUE(recipe.refused({"layers.1.", "no part of a mamba2 model of 1 layers"}));
}

TEST(Checkpoint, RefusesWrongTensors) {
  const Recipe good = huggingface_recipe();
  for (const auto& [name, tensor] : good.tensors) {
    Recipe recipe = good;
    recipe.tensors.erase(name);
    // A missing bias of the first layer contradicts the configuration; the rest is just missing.
    EXPECT_TRUE(recipe.refused({canonical_name(name)})) << name;
    recipe = good;
    const auto dims = tensor.view.dims();
    std::vector<std::int64_t> shape(dims.begin(), dims.end());
    recipe.add(name, shape, DType::i32);
    EXPECT_TRUE(recipe.refused({name, "dtype i32"})) << name;
    shape.push_back(1);
    recipe.add(name, shape);
    EXPECT_TRUE(recipe.refused({name, "shape"})) << name;
    shape.pop_back();
    ++shape.back();
    recipe.add(name, shape);
    EXPECT_TRUE(recipe.refused({name.ends_with("A_log") ? "layers." : name})) << name;
  }
  Recipe recipe = good;
  recipe.add("backbone.layers.0.attn.q_proj.weight", {8, 8});
  EXPECT_TRUE(recipe.refused({"attn.q_proj.weight", "no part"}));
  recipe = good;
  recipe.add("backbone.layers.0.mixer.out_proj.weight", {0, std::int64_t{1} << 59});
  EXPECT_TRUE(recipe.refused({"out_proj.weight", "extents"}));
}

TEST(Checkpoint, CopiesWhatIsMisaligned) {
  const Recipe recipe = huggingface_recipe();
  const ScratchFolder folder;
  recipe.write(folder);
  // The same file with a header that is longer by one space.
  const auto path = folder.path() / "model.safetensors";
  std::string file = test::read_file(path);
  const auto header_bytes = static_cast<unsigned char>(file[0]) |
                            static_cast<unsigned>(static_cast<unsigned char>(file[1])) << 8;
  file.insert(8 + header_bytes, " ");
  file.replace(0, 2, test::little_endian(header_bytes + 1, 2));
  folder.write("model.safetensors", file);

  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::string name = "layers.1.mixer.in_proj.weight";
  const Tensor& expected = recipe.tensors.at("backbone." + name);
  for (int round = 0; round < 2; ++round) {
    const ConstTensorView view = checkpoint.tensor(name);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % alignof(float), 0u);
    EXPECT_TRUE(same_elements(view, expected.view));
    EXPECT_EQ(checkpoint.tensor(name).data, view.data);  // copied once
    checkpoint.release(name);
  }
}

TEST(Checkpoint, CopiesWhatIsStrided) {
  namespace pickle = test::pickle;
  // norm_f.weight is every second element of a storage; the embedding is stored transposed.
  const Recipe recipe = huggingface_recipe();
  std::vector<std::pair<std::string, std::string>> items;
  std::map<std::string, std::string> storages;
  for (const auto& [name, tensor] : recipe.tensors) {
    const auto dims = tensor.view.dims();
    std::vector<std::int64_t> shape(dims.begin(), dims.end());
    std::vector<std::int64_t> strides(tensor.view.strides.begin(),
                                      tensor.view.strides.begin() + tensor.view.rank);
    const std::string key = std::to_string(storages.size());
    std::int64_t numel = tensor.view.numel();
    std::string data(static_cast<const char*>(tensor.view.data),
                     static_cast<std::size_t>(tensor.view.size_bytes()));
    if (name == "backbone.norm_f.weight") {
      std::string spread;
      for (std::size_t i = 0; i < data.size(); i += 4) spread += data.substr(i, 4) + "____";
      data = spread;
      strides = {2};
      numel *= 2;
    } else if (name == "backbone.embeddings.weight") {
      std::string transposed(data.size(), '\0');
      for (std::size_t row = 0; row < 16; ++row) {
        for (std::size_t column = 0; column < 8; ++column) {
          transposed.replace((column * 16 + row) * 4, 4, data, (row * 8 + column) * 4, 4);
        }
      }
      data = transposed;
      strides = {1, 16};
    }
    storages[key] = data;
    items.emplace_back(
        pickle::text(name),
        pickle::tensor(pickle::storage("FloatStorage", key, numel), 0, shape, strides));
  }
  const ScratchFolder folder;
  folder.write("config.json", recipe.config.dump());
  folder.write("pytorch_model.bin",
               test::torch_archive(pickle::program(pickle::dict(items)), storages).build());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const auto& [name, tensor] : recipe.tensors) {
    const ConstTensorView view = checkpoint.tensor(canonical_name(name));
    EXPECT_TRUE(view.is_contiguous()) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % alignof(float), 0u) << name;
    EXPECT_TRUE(same_elements(view, tensor.view)) << name;
  }
}

TEST(Checkpoint, MapsAndReleases) {
  const Checkpoint checkpoint = Checkpoint::open("models/books-11m");
  const ConstTensorView view = checkpoint.tensor("embedding.weight");
  const std::vector<char> before(static_cast<const char*>(view.data),
                                 static_cast<const char*>(view.data) + view.size_bytes());
  checkpoint.release("embedding.weight");
  EXPECT_EQ(checkpoint.tensor("embedding.weight").data, view.data);
  EXPECT_EQ(std::memcmp(before.data(), view.data, before.size()), 0);
}

TEST(Checkpoint, MayBeUsedFromSeveralThreads) {
  const ScratchFolder folder;
  huggingface_recipe().write(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const std::string& name : checkpoint.names()) {
        EXPECT_GT(checkpoint.tensor(name).numel(), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Checkpoint, RefusesWhatIsNoCheckpoint) {
  const ScratchFolder folder;
  const auto open = [&](const std::string& name = "") {
    return [&folder, name] { Checkpoint::open(folder.path() / name); };
  };
  const std::string path = folder.path().string();
  EXPECT_TRUE(fails_with(open("none"), {path, "none", "does not exist"}));
  EXPECT_TRUE(fails_with(open(), {path, "no weights"}));
  folder.write("config.json", huggingface_recipe().config.dump());
  EXPECT_TRUE(fails_with(open(), {path, "no weights", "model.safetensors"}));
  folder.write("model.gguf", "GGUF");
  EXPECT_TRUE(fails_with(open("model.gguf"), {path, ".gguf"}));
  folder.write("model.safetensors", "");
  EXPECT_TRUE(fails_with(open(), {path, "model.safetensors", "0 bytes"}));
  folder.write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  EXPECT_TRUE(fails_with(open(), {path, "model.safetensors", "Git LFS pointer"}));
  std::filesystem::remove(folder.path() / "model.safetensors");
  std::filesystem::create_directory(folder.path() / "model.safetensors");
  EXPECT_TRUE(fails_with(open(), {path, "model.safetensors", "regular file"}));
  std::filesystem::remove(folder.path() / "config.json");
  EXPECT_TRUE(fails_with(open(), {"config.json", "missing"}));
}

TEST(Checkpoint, RefusesEveryTruncationOfItsFiles) {
  const ScratchFolder folder;
  huggingface_recipe().write(folder);
  for (const std::string name : {"config.json", "model.safetensors"}) {
    const std::string whole = test::read_file(folder.path() / name);
    // Every length near the ends, where the records are, and some between.
    for (std::size_t size = 0; size < whole.size(); size += size % 16 == 0 ? 1 : 3) {
      folder.write(name, std::string_view(whole).substr(0, size));
      EXPECT_TRUE(fails_with([&] { Checkpoint::open(folder.path()); }, {name})) << size;
    }
    folder.write(name, whole);
  }
  EXPECT_NO_THROW(Checkpoint::open(folder.path()));
}

}  // namespace
}  // namespace adder
