#include "models/random_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <functional>
#include <span>

#include "core/check.h"

namespace adder {
namespace {

struct Published {
  const char* name;
  Architecture architecture;
  std::int64_t d_model;
  std::int64_t n_layer;
};

// Gu and Dao 2023, section E.2.3; Dao and Gu 2024, section D.2.
constexpr Published kPublished[] = {
    {"mamba-130m", Architecture::mamba1, 768, 24},
    {"mamba-370m", Architecture::mamba1, 1024, 48},
    {"mamba-790m", Architecture::mamba1, 1536, 48},
    {"mamba-1.4b", Architecture::mamba1, 2048, 48},
    {"mamba-2.8b", Architecture::mamba1, 2560, 64},
    {"mamba2-130m", Architecture::mamba2, 768, 24},
    {"mamba2-370m", Architecture::mamba2, 1024, 48},
    {"mamba2-780m", Architecture::mamba2, 1536, 48},
    {"mamba2-1.3b", Architecture::mamba2, 2048, 48},
    {"mamba2-2.7b", Architecture::mamba2, 2560, 64},
};

// splitmix64 (Steele, Lea and Flood 2014): enough for weights, and the same everywhere.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}
  /// Once `count` normals were taken from `seed`.
  static Generator after_normals(std::uint64_t seed, std::int64_t count) {
    return Generator(seed + 4 * static_cast<std::uint64_t>(count) * kStep);
  }
  /// In [0, 1).
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24F; }
  /// Mean 0, variance 1: a sum of four uniforms, which has the right moments and no tails.
  float normal() {
    const float sum = uniform() + uniform() + uniform() + uniform();
    return (sum - 2.0F) * 1.7320508F;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ull;

  std::uint64_t next() {
    state_ += kStep;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

// Normals of a deviation, in parallel: the same as one after another.
void fill_with_normals(std::span<float> values, std::uint64_t seed, float deviation,
                       ThreadPool& pool) {
  constexpr std::int64_t kGrain = 1 << 16;
  pool.parallel_for(std::ssize(values), kGrain, [&](std::int64_t begin, std::int64_t end) {
    Generator generator = Generator::after_normals(seed, begin);
    for (std::int64_t i = begin; i < end; ++i) {
      values[static_cast<std::size_t>(i)] = deviation * generator.normal();
    }
  });
}

std::uint64_t hash_of(std::string_view text) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// The part of a canonical name after "layers.N.".
std::string leaf_of(const std::string& name) {
  if (name.rfind("layers.", 0) != 0) return name;
  const std::size_t dot = name.find('.', 7);
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::vector<std::string> published_names() {
  std::vector<std::string> out;
  for (const Published& p : kPublished) out.emplace_back(p.name);
  return out;
}

ModelConfig published_config(const std::string& name) {
  for (const Published& p : kPublished) {
    if (name != p.name) continue;
    ModelConfig config;
    config.architecture = p.architecture;
    config.format = "random";
    config.d_model = p.d_model;
    config.n_layer = p.n_layer;
    config.vocab_size = 50277;  // GPT-NeoX's tokenizer
    config.padded_vocab_size = p.architecture == Architecture::mamba1 ? 50280 : 50288;
    config.d_inner = 2 * p.d_model;
    config.d_conv = 4;
    config.conv_bias = true;
    config.tie_embeddings = true;
    config.residual_in_fp32 = true;
    config.norm_epsilon = 1e-5F;
    if (p.architecture == Architecture::mamba2) {
      config.d_state = 128;
      config.headdim = 64;
      config.nheads = config.d_inner / config.headdim;
      config.ngroups = 1;
      config.chunk_size = 256;
      config.gated_norm = true;
    } else {
      config.d_state = 16;
      config.dt_rank = (p.d_model + 15) / 16;
    }
    return config;
  }
  fail("there is no published shape \"{}\", expected one of {}", name,
       fmt::join(published_names(), ", "));
}

std::vector<std::int64_t> RandomWeights::dims_of(const std::string& leaf) const {
  const ModelConfig& c = config_;
  const std::int64_t bc = 2 * c.ngroups * c.d_state;
  const bool mamba2 = c.architecture == Architecture::mamba2;
  if (leaf == "embedding.weight") return {c.padded_vocab_size, c.d_model};
  if (leaf == "norm_f.weight" || leaf == "norm.weight") return {c.d_model};
  if (leaf == "mixer.out_proj.weight") return {c.d_model, c.d_inner};
  if (leaf == "mixer.conv1d.weight") return {mamba2 ? c.d_inner + bc : c.d_inner, c.d_conv};
  if (leaf == "mixer.conv1d.bias") return {mamba2 ? c.d_inner + bc : c.d_inner};
  if (mamba2) {
    if (leaf == "mixer.in_proj.weight") return {2 * c.d_inner + bc + c.nheads, c.d_model};
    if (leaf == "mixer.A_log" || leaf == "mixer.D" || leaf == "mixer.dt_bias") return {c.nheads};
    if (leaf == "mixer.norm.weight") return {c.d_inner};
  } else {
    if (leaf == "mixer.in_proj.weight") return {2 * c.d_inner, c.d_model};
    if (leaf == "mixer.x_proj.weight") return {c.dt_rank + 2 * c.d_state, c.d_inner};
    if (leaf == "mixer.dt_proj.weight") return {c.d_inner, c.dt_rank};
    if (leaf == "mixer.dt_proj.bias" || leaf == "mixer.D") return {c.d_inner};
    if (leaf == "mixer.A_log") return {c.d_inner, c.d_state};
  }
  return {};
}

bool RandomWeights::has(const std::string& name) const { return !dims_of(leaf_of(name)).empty(); }

std::int64_t RandomWeights::parameter_count() const {
  const auto count = [&](std::initializer_list<const char*> leaves) {
    std::int64_t sum = 0;
    for (const char* leaf : leaves) {
      const std::vector<std::int64_t> dims = dims_of(leaf);
      std::int64_t product = dims.empty() ? 0 : 1;
      for (std::int64_t d : dims) product *= d;
      sum += product;
    }
    return sum;
  };
  return count({"embedding.weight", "norm_f.weight"}) +
         config_.n_layer *
             count({"norm.weight", "mixer.in_proj.weight", "mixer.conv1d.weight",
                    "mixer.conv1d.bias", "mixer.x_proj.weight", "mixer.dt_proj.weight",
                    "mixer.dt_proj.bias", "mixer.dt_bias", "mixer.A_log", "mixer.D",
                    "mixer.norm.weight", "mixer.out_proj.weight"});
}

Tensor RandomWeights::tensor(const std::string& name) const {
  const std::string leaf = leaf_of(name);
  const std::vector<std::int64_t> dims = dims_of(leaf);
  check(!dims.empty(), "random weights: there is no tensor {}", name);
  Tensor out = Tensor::empty(DType::f32, dims);
  Generator generator(hash_of(name));
  std::function<float(std::int64_t)> value;
  if (ends_with(leaf, "norm.weight") || leaf == "norm_f.weight" || leaf == "mixer.D") {
    value = [](std::int64_t) { return 1.0F; };
  } else if (leaf == "mixer.A_log" && dims.size() == 2) {
    value = [n = dims[1]](std::int64_t i) { return std::log(static_cast<float>(i % n + 1)); };
  } else if (leaf == "mixer.A_log") {
    value = [&](std::int64_t) { return std::log(1.0F + 15.0F * generator.uniform()); };
  } else if (leaf == "mixer.dt_bias" || leaf == "mixer.dt_proj.bias") {
    value = [&](std::int64_t) {  // softplus⁻¹(dt)
      const float dt = 0.001F * std::pow(100.0F, generator.uniform());
      return dt + std::log(-std::expm1(-dt));
    };
  } else {
    const float deviation =
        leaf == "embedding.weight" ? 0.02F : 1.0F / std::sqrt(static_cast<float>(dims.back()));
    fill_with_normals(out.span<float>(), hash_of(name), deviation, pool_);
    return out;
  }
  std::int64_t i = 0;
  for (float& v : out.span<float>()) v = value(i++);
  return out;
}

}  // namespace adder
