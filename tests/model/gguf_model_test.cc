// Models from GGUF files: the results are those of the checkpoint that the file was made from.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "adder/convert.h"
#include "adder/model.h"
#include "checkpoint/checkpoint.h"
#include "core/atomic_file.h"
#include "core/tensor.h"
#include "gguf/block_format.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/gguf_builder.h"

namespace adder {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::GgufBuilder;

const fs::path kBooks = "models/books-11m";

/// What a tensor's elements are stored as.
struct Encoding {
  std::uint32_t type;
  std::function<std::string(std::span<const float>)> encode;
};

/// A path of the running test, whose file is removed at its end.
class ScratchFile {
 public:
  explicit ScratchFile(const GgufBuilder& file) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    static int counter = 0;
    std::string name = fmt::format("adder-{}-{}-{}.gguf", test->name(), ::getpid(), counter++);
    std::replace(name.begin(), name.end(), '/', '-');
    path_ = fs::path(::testing::TempDir()) / name;
    const std::string bytes = file.build();
    write_file_atomically(path_, std::as_bytes(std::span(bytes)));
  }
  ~ScratchFile() { fs::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Encoding encoding_of(DType dtype) {
  if (dtype == DType::f32) {
    return {test::kGgmlF32, [](std::span<const float> values) { return test::raw_array(values); }};
  }
  const std::uint32_t type = dtype == DType::bf16 ? test::kGgmlBf16 : test::kGgmlF16;
  return {type, [dtype](std::span<const float> values) {
            const auto count = static_cast<std::int64_t>(values.size());
            const Tensor out = convert(ConstTensorView::of(values.data(), {count}), dtype);
            return std::string(static_cast<const char*>(out.view.data),
                               static_cast<std::size_t>(out.view.size_bytes()));
          }};
}

/// The name in the file.
std::string gguf_name(std::string name, bool mamba2) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"embedding.weight", "token_embd.weight"},
      {"norm_f.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"mixer.norm.weight", "ssm_norm.weight"},
      {"norm.weight", "attn_norm.weight"},
      {"mixer.in_proj", "ssm_in"},
      {"mixer.out_proj", "ssm_out"},
      {"mixer.conv1d", "ssm_conv1d"},
      {"mixer.x_proj", "ssm_x"},
      {"mixer.dt_proj", "ssm_dt"},
      {"mixer.dt_bias", "ssm_dt.bias"},
      {"mixer.A_log", "ssm_a"},
      {"mixer.D", "ssm_d"},
      {"layers.", "blk."}};
  for (const auto& [from, to] : changes) {
    if (name.find("ssm_norm") != std::string::npos && from == "norm.weight") continue;
    if (name == "output_norm.weight") break;
    if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  }
  EXPECT_TRUE(mamba2 || name.find("ssm_norm") == std::string::npos);
  return name;
}

void add_config(GgufBuilder& file, const ModelConfig& config) {
  const bool mamba2 = config.architecture == Architecture::mamba2;
  const std::string prefix = mamba2 ? "mamba2." : "mamba.";
  const auto set = [&](const char* key, std::int64_t value) {
    file.set_u32(prefix + key, static_cast<std::uint32_t>(value));
  };
  file.set_text("general.architecture", mamba2 ? "mamba2" : "mamba");
  set("embedding_length", config.d_model);
  set("block_count", config.n_layer);
  set("vocab_size", config.padded_vocab_size);
  set("ssm.conv_kernel", config.d_conv);
  set("ssm.inner_size", config.d_inner);
  set("ssm.state_size", config.d_state);
  set("ssm.time_step_rank", mamba2 ? config.nheads : config.dt_rank);
  if (mamba2) set("ssm.group_count", config.ngroups);
  if (!mamba2) {
    file.set_bool("mamba.ssm.dt_b_c_rms", config.architecture == Architecture::falcon_mamba);
  }
  file.set_f32(prefix + "attention.layer_norm_rms_epsilon", config.norm_epsilon);
}

/// The checkpoint as llama.cpp's converter lays it out, matrices in `matrices` or as they are.
GgufBuilder gguf_of(const Checkpoint& checkpoint, const std::optional<Encoding>& matrices = {}) {
  const ModelConfig& config = checkpoint.config();
  const bool mamba2 = config.architecture == Architecture::mamba2;
  GgufBuilder file;
  add_config(file, config);
  for (const std::string& name : checkpoint.names()) {
    const ConstTensorView view = checkpoint.tensor(name);
    Tensor values = convert(view, DType::f32);
    const auto ends_with = [&](const char* leaf) { return name.ends_with(leaf); };
    std::vector<std::uint64_t> extents(view.dims().rbegin(), view.dims().rend());
    if (ends_with("mixer.A_log")) {
      for (float& v : values.span<float>()) v = -std::exp(v);
    }
    if (mamba2 && (ends_with("mixer.A_log") || ends_with("mixer.D"))) extents = {1, extents[0]};
    if (ends_with("mixer.norm.weight")) {
      const auto groups = static_cast<std::uint64_t>(config.ngroups);
      extents = {extents[0] / groups, groups};
    }
    const bool matrix =
        ends_with("proj.weight") || ends_with("embedding.weight") || ends_with("lm_head.weight");
    const Encoding encoding =
        matrix ? matrices.value_or(encoding_of(view.dtype)) : encoding_of(DType::f32);
    file.tensors.push_back({.name = gguf_name(name, mamba2),
                            .extents = extents,
                            .type = encoding.type,
                            .data = encoding.encode(values.span<float>())});
  }
  return file;
}

void add_tokenizer(GgufBuilder& file, const fs::path& folder) {
  const json document = json::parse(std::ifstream(folder / "tokenizer.json"));
  const json& vocabulary = document["model"]["vocab"];
  std::vector<std::string> tokens(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) tokens.at(id.get<std::size_t>()) = token;
  std::vector<std::int32_t> types(tokens.size(), 1);
  for (const json& token : document["added_tokens"]) types.at(token["id"].get<std::size_t>()) = 3;
  std::vector<std::string> merges;
  for (const json& merge : document["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  file.set_text("tokenizer.ggml.model", "gpt2");
  file.set_text("tokenizer.ggml.pre", "olmo");
  file.set_texts("tokenizer.ggml.tokens", tokens);
  file.set_i32s("tokenizer.ggml.token_type", types);
  file.set_texts("tokenizer.ggml.merges", merges);
  file.set_u32("tokenizer.ggml.bos_token_id", 0);
  file.set_u32("tokenizer.ggml.eos_token_id", 0);
}

std::vector<int> greedy(const Model& model, const std::vector<int>& prompt, std::int64_t count) {
  Session session = model.new_session();
  session.prefill(prompt);
  std::vector<int> out;
  for (int token : session.generate(
           {.max_tokens = count, .sampling = {.temperature = 0}, .stop_at_eos = false})) {
    out.push_back(token);
  }
  return out;
}

std::vector<float> logits_of(const Model& model, const std::vector<int>& prompt) {
  Session session = model.new_session();
  session.prefill(prompt);
  const auto logits = session.logits();
  return {logits.begin(), logits.end()};
}

std::vector<int> ids_up_to(int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * 37 + 11) % 251);
  return ids;
}

/// A copy of a checkpoint folder without what a GGUF file cannot say of a model: an epsilon of its
/// own for Falcon-Mamba's norms, limits of dt, rows that are padding, and how to cut into chunks.
class PlainCopy {
 public:
  explicit PlainCopy(const fs::path& folder)
      : path_(fs::path(::testing::TempDir()) /
              fmt::format("{}-{}", folder.filename().string(), ::getpid())) {
    fs::remove_all(path_);
    fs::copy(folder, path_);
    json config = json::parse(std::ifstream(folder / "config.json"));
    config["vocab_size"] = Checkpoint::open(folder).config().padded_vocab_size;
    if (config.contains("mixer_rms_eps")) config["mixer_rms_eps"] = config["layer_norm_epsilon"];
    if (config.contains("chunk_size")) config["chunk_size"] = 256;
    if (config.contains("ssm_cfg")) {
      config["ssm_cfg"].erase("dt_limit");
      config["ssm_cfg"].erase("chunk_size");
    }
    std::ofstream(path_ / "config.json") << config;
  }
  ~PlainCopy() { fs::remove_all(path_); }
  PlainCopy(const PlainCopy&) = delete;
  PlainCopy& operator=(const PlainCopy&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class GgufOf : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufOf, HasTheSameLogitsBitForBit) {
  const PlainCopy original(fs::path("tests/data/golden") / GetParam());
  const ScratchFile file(gguf_of(Checkpoint::open(original.path())));
  const Model expected = Model::load(original.path());
  const Model model = Model::load(file.path());
  EXPECT_EQ(model.config().format, "gguf");
  EXPECT_EQ(model.config().architecture, expected.config().architecture);
  EXPECT_EQ(model.config().tie_embeddings, expected.config().tie_embeddings);
  const std::vector<int> prompt = ids_up_to(70);
  EXPECT_TRUE(test::same_bits(logits_of(model, prompt), logits_of(expected, prompt)));
  EXPECT_EQ(greedy(model, prompt, 20), greedy(expected, prompt, 20));
}

INSTANTIATE_TEST_SUITE_P(, GgufOf,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba1-original",
                                           "mamba2-original-fp16", "mamba2-original-groups"),
                         test::CheckpointName());

TEST(GgufModel, BooksGoOnAsTheyDo) {
  const json expected = json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  for (const DType dtype : {DType::f32, DType::bf16}) {  // the same values: the checkpoint is bf16
    GgufBuilder builder = gguf_of(Checkpoint::open(kBooks), encoding_of(dtype));
    add_tokenizer(builder, kBooks);
    const ScratchFile file(builder);
    const Model model = Model::load(file.path());
    EXPECT_EQ(model.weight_format(), format_of(dtype));
    EXPECT_EQ(model.config().vocab_size, 4096);
    EXPECT_EQ(model.config().eos_token_ids, std::vector<int>{0});
    for (const json& example : expected["greedy"]) {
      const auto prompt = model.tokenizer().encode(example["prompt"].get<std::string>());
      EXPECT_EQ(prompt, example["prompt_ids"].get<std::vector<int>>());
      const auto ids = greedy(model, prompt, 64);
      EXPECT_EQ(ids, example["greedy_ids"].get<std::vector<int>>());
      EXPECT_EQ(model.tokenizer().decode(ids), example["greedy"].get<std::string>());
    }
  }
}

TEST(GgufModel, BlocksOf8BitsLoseLittle) {
  GgufBuilder builder =
      gguf_of(Checkpoint::open(kBooks), Encoding{test::kGgmlQ8_0, test::q8_0_blocks});
  const ScratchFile file(builder);
  const Model model = Model::load(file.path());
  const Model original = Model::load(kBooks);
  EXPECT_EQ(model.parameter_count(), original.parameter_count());
  EXPECT_EQ(model.weight_format(), WeightFormat::int8);

  const json expected = json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  const auto ids = expected["score"]["ids"].get<std::vector<int>>();
  Session session = model.new_session();
  double sum = 0;
  for (const double nll : session.score(ids)) sum += nll;
  const double truth = expected["score"]["nll_sum"].get<double>();
  EXPECT_NEAR(sum / truth, 1.0, 0.005);

  // As the same numbers in float32, of which the same integers are made again.
  const Encoding decoded{test::kGgmlF32, [](std::span<const float> values) {
                           const std::string blocks = test::q8_0_blocks(values);
                           std::vector<float> out(values.size());
                           decode_blocks(BlockFormat::q8_0, std::as_bytes(std::span(blocks)), out);
                           return test::raw_array(std::span<const float>(out));
                         }};
  const ScratchFile plain(gguf_of(Checkpoint::open(kBooks), decoded));
  const Model again = Model::load(plain.path(), {.dtype = "int8"});
  EXPECT_TRUE(test::same_bits(logits_of(model, ids), logits_of(again, ids)));
}

/// A checkpoint folder that `convert` made, removed at the end.
class Converted {
 public:
  Converted(const fs::path& from, WeightFormat format)
      : path_(fs::path(::testing::TempDir()) /
              fmt::format("adder-converted-{}-{}", from.filename().string(), ::getpid())) {
    fs::remove_all(path_);
    convert(from, path_, {.format = format});
  }
  ~Converted() { fs::remove_all(path_); }
  Converted(const Converted&) = delete;
  Converted& operator=(const Converted&) = delete;

  Model model() const { return Model::load(path_); }

 private:
  fs::path path_;
};

TEST_P(GgufOf, IsConvertedToWhatTheOriginalIs) {
  const PlainCopy original(fs::path("tests/data/golden") / GetParam());
  const ScratchFile file(gguf_of(Checkpoint::open(original.path())));
  for (WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    const Converted ours(file.path(), format);
    const Converted theirs(original.path(), format);
    const Model model = ours.model();
    EXPECT_EQ(model.weight_format(), format);
    EXPECT_EQ(model.config().format, "huggingface");
    const std::vector<int> prompt = ids_up_to(70);
    EXPECT_TRUE(test::same_bits(logits_of(model, prompt), logits_of(theirs.model(), prompt)));
  }
}

TEST(GgufModel, BlocksOf8BitsStayWhatTheyAreWhenConverted) {
  GgufBuilder builder =
      gguf_of(Checkpoint::open(kBooks), Encoding{test::kGgmlQ8_0, test::q8_0_blocks});
  add_tokenizer(builder, kBooks);
  const ScratchFile file(builder);
  const Converted converted(file.path(), WeightFormat::int8);
  const Model model = converted.model();
  const Model expected = Model::load(file.path());
  const std::string text = "It was a dark night; 1,000 stars.";
  const std::vector<int> prompt = expected.tokenizer().encode(text);
  EXPECT_EQ(model.tokenizer().encode(text), prompt);
  EXPECT_EQ(model.config().eos_token_ids, expected.config().eos_token_ids);
  EXPECT_TRUE(test::same_bits(logits_of(model, prompt), logits_of(expected, prompt)));
}

TEST(GgufModel, ScalesOfBlocksAreFinite) {
  GgufBuilder builder = gguf_of(Checkpoint::open("tests/data/golden/hf-mamba2-tiny"),
                                Encoding{test::kGgmlQ8_0, test::q8_0_blocks});
  std::string& data = builder.tensor("blk.1.ssm_in.weight").data;
  data[0] = 0;
  data[1] = 0x7c;  // infinity
  const ScratchFile file(builder);
  const std::string expected = file.path().string() +
                               ": tensor \"blk.1.ssm_in.weight\" has a scale that is not finite in "
                               "row 0, expected a number";
  EXPECT_EQ(test::error_of([&] { Model::load(file.path()); }), expected);
  const fs::path folder = file.path().string() + "-converted";
  EXPECT_EQ(test::error_of([&] { convert(file.path(), folder, {}); }), expected);
  EXPECT_FALSE(fs::exists(folder));
}

TEST(GgufModel, SnapshotsBelongToTheFile) {
  const Checkpoint checkpoint = Checkpoint::open("tests/data/golden/hf-mamba2-tiny");
  const ScratchFile file(gguf_of(checkpoint, Encoding{test::kGgmlQ8_0, test::q8_0_blocks}));
  GgufBuilder changed = gguf_of(checkpoint, Encoding{test::kGgmlQ8_0, test::q8_0_blocks});
  changed.tensor("blk.2.ssm_out.weight").data[2] ^= 1;
  const ScratchFile other(changed);
  const Model model = Model::load(file.path());
  Session session = model.new_session();
  session.prefill(ids_up_to(9));
  const Model again = Model::load(file.path());
  EXPECT_EQ(again.fingerprint(), model.fingerprint());
  Session continued = again.new_session();
  EXPECT_EQ(continued.restore(session.snapshot()), 9);
  EXPECT_TRUE(test::same_bits(continued.logits(), session.logits()));
  EXPECT_NE(Model::load(other.path()).fingerprint(), model.fingerprint());
}

TEST(GgufModel, WithoutATokenizerItTakesIds) {
  GgufBuilder builder = gguf_of(Checkpoint::open("tests/data/golden/hf-mamba2-tiny"));
  const auto expect = [&](std::initializer_list<const char*> parts) {
    const ScratchFile file(builder);
    const Model model = Model::load(file.path());
    EXPECT_FALSE(model.has_tokenizer());
    EXPECT_EQ(greedy(model, {1, 2, 3}, 4).size(), 4U);
    const std::string message = test::error_of([&] { model.tokenizer(); });
    EXPECT_NE(message.find(file.path().string()), std::string::npos) << message;
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect({"no tokenizer.ggml.model"});
  builder.set_text("tokenizer.ggml.model", "t5");
  expect({"tokenizer.ggml.model", "\"t5\""});
}

TEST(GgufModel, AIsNowhereAboveZero) {
  for (const char* name : {"hf-mamba1-tiny", "hf-mamba2-tiny"}) {
    for (const float bad : {0.25F, std::numeric_limits<float>::quiet_NaN()}) {
      GgufBuilder builder = gguf_of(Checkpoint::open(fs::path("tests/data/golden") / name));
      builder.tensor("blk.1.ssm_a").data.replace(8, sizeof(bad), test::raw(bad));
      const ScratchFile file(builder);
      const std::string message = test::error_of([&] { Model::load(file.path()); });
      EXPECT_NE(message.find("layers.1.mixer.A"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace adder
