#include "adder/model.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "backend/make_backend.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "core/check.h"
#include "models/random_weights.h"
#include "runtime/model_impl.h"

namespace adder {
namespace {

// A checkpoint as the source of a network's weights.
class CheckpointWeights final : public WeightSource {
 public:
  explicit CheckpointWeights(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}

  const ModelConfig& config() const override { return checkpoint_->config(); }
  bool has(const std::string& name) const override { return checkpoint_->has(name); }
  Tensor tensor(const std::string& name) const override {
    const ConstTensorView view = checkpoint_->tensor(name);
    TensorView shared(const_cast<void*>(view.data), view.dtype, view.dims());
    shared.strides = view.strides;
    std::shared_ptr<const void> owner = checkpoint_->copy_of(name);
    if (owner == nullptr) owner = checkpoint_;
    return {shared, std::const_pointer_cast<void>(owner)};
  }
  std::unique_ptr<const MatrixRows> rows(const std::string& name) const override {
    return checkpoint_->rows(name);
  }
  WeightFormat format(const std::string& name) const override { return checkpoint_->format(name); }
  std::optional<QuantizedMatrix> quantized(const std::string& name) const override {
    if (!checkpoint_->has_panels(name)) return std::nullopt;
    const auto bytes = checkpoint_->blocks(name);
    std::shared_ptr<const std::byte> storage(checkpoint_, bytes.data());
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0) {
      const std::shared_ptr<std::byte> copy = allocate_host(bytes.size());
      std::copy(bytes.begin(), bytes.end(), copy.get());
      storage = copy;
    }
    const auto shape = checkpoint_->shape(name);
    return QuantizedMatrix(checkpoint_->format(name), shape[0], shape[1], std::move(storage));
  }
  void release(const std::string& name) const override { checkpoint_->release(name); }
  // The tensor's bytes as they are stored.
  ConstTensorView stored(const std::string& name) const {
    const auto blocks = checkpoint_->blocks(name);
    if (!blocks.empty()) {
      return {blocks.data(), DType::u8, {static_cast<std::int64_t>(blocks.size())}};
    }
    const ConstTensorView view = checkpoint_->stored_view(name);
    return view.defined() ? view : checkpoint_->tensor(name);
  }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
};

// What matrices are converted to; "f32" converts none, since none is stored in more than 32 bits.
std::optional<WeightFormat> matrix_format(const std::string& name) {
  if (name == "f32") return std::nullopt;
  for (WeightFormat format :
       {WeightFormat::bf16, WeightFormat::f16, WeightFormat::int8, WeightFormat::int4}) {
    if (name == name_of(format)) return format;
  }
  fail("dtype \"{}\" is unknown, expected f32, bf16, f16, int8 or int4", name);
}

DType state_dtype(const std::string& name) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    if (name == name_of(dtype)) return dtype;
  }
  fail("state dtype \"{}\" is unknown, expected f32 or bf16", name);
}

// Samples every tensor of the model: two models that differ in a trained way differ in each.
// `stored` gives a tensor as it is stored, and `done` gives back the pages that looking took.
std::uint64_t fingerprint_of(const ModelConfig& config, const std::vector<std::string>& names,
                             const std::function<ConstTensorView(const std::string&)>& stored,
                             const std::function<void(const std::string&)>& done) {
  constexpr std::size_t kSamples = 16;
  constexpr std::size_t kSampleBytes = 64;
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  const std::int64_t numbers[] = {static_cast<std::int64_t>(config.architecture), config.d_model,
                                  config.n_layer, config.padded_vocab_size, config.ngroups};
  XXH3_64bits_update(&hash, numbers, sizeof(numbers));
  for (const std::string& name : names) {
    const ConstTensorView view = stored(name);
    XXH3_64bits_update(&hash, name.data(), name.size());
    XXH3_64bits_update(&hash, view.dims().data(), view.dims().size_bytes());
    const auto* bytes = static_cast<const unsigned char*>(view.data);
    const auto size = static_cast<std::size_t>(view.size_bytes());
    if (!view.is_contiguous() || size == 0) continue;
    for (std::size_t i = 0; i < kSamples; ++i) {
      const std::size_t begin = size / kSamples * i;
      XXH3_64bits_update(&hash, bytes + begin, std::min(kSampleBytes, size - begin));
    }
    done(name);
  }
  return XXH3_64bits_digest(&hash);
}

// What the weights take on the device; vectors are few.
std::int64_t weight_bytes(std::int64_t parameter_count, WeightFormat format) {
  return static_cast<std::int64_t>(static_cast<double>(parameter_count) * bits_of(format) / 8);
}

std::shared_ptr<Model::Impl> build(const WeightSource& source, std::int64_t parameter_count,
                                   const LoadOptions& options) {
  check(options.nthreads >= 0 && options.nthreads <= 1024,
        "{} threads were asked for, expected 0 (all cores) to 1024", options.nthreads);
  check(options.piece_tokens >= 0, "pieces of {} tokens were asked for, expected at least 1, or 0",
        options.piece_tokens);
  const std::optional<WeightFormat> format = matrix_format(options.dtype);
  auto impl = std::make_shared<Model::Impl>();
  auto backend =
      make_backend({.device = options.device,
                    .activations = format ? dtype_of(*format).value_or(DType::f32) : DType::f32,
                    .states = state_dtype(options.state_dtype),
                    .nthreads = options.nthreads});
  impl->parameter_count = parameter_count;
  impl->weight_format = format.value_or(source.format("layers.0.mixer.in_proj.weight"));
  if (!format && !backend->multiplies(impl->weight_format)) {
    impl->weight_format = WeightFormat::bf16;  // see WeightLoader
  }
  backend->check_room(weight_bytes(parameter_count, impl->weight_format), "the weights");
  impl->network = std::make_unique<Network>(source, *backend, format, options.progress);
  if (options.piece_tokens > 0) impl->piece_tokens = options.piece_tokens;
  impl->backend = std::move(backend);
  return impl;
}

// A GGUF file whose tokenizer is of no supported kind still is a model of ids, and so is what was
// made from it.
void load_tokenizer(Model::Impl& impl, const std::filesystem::path& path) {
  const auto file = find_tokenizer(path);
  impl.why_no_tokenizer = fmt::format(
      "{}: there is no tokenizer.json beside the checkpoint, expected one to turn text into ids",
      path.string());
  if (!file) return;
  try {
    impl.tokenizer = Tokenizer::load(*file);
  } catch (const Error& error) {
    if (file->extension() != ".gguf" && impl.network->config().format != "gguf") throw;
    impl.why_no_tokenizer = error.what();
  }
}

}  // namespace

Model Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  const auto checkpoint = std::make_shared<const Checkpoint>(Checkpoint::open(path));
  const CheckpointWeights source(checkpoint);
  auto impl = build(source, checkpoint->parameter_count(), options);
  impl->name = path.string();
  impl->fingerprint = fingerprint_of(
      checkpoint->config(), checkpoint->names(),
      [&](const std::string& name) { return source.stored(name); },
      [&](const std::string& name) {
        if (!checkpoint->has_panels(name)) checkpoint->release(name);
      });
  load_tokenizer(*impl, path);
  return Model(std::move(impl));
}

Model Model::random(const std::string& shape, const LoadOptions& options) {
  const RandomWeights source(published_config(shape));
  auto impl = build(source, source.parameter_count(), options);
  impl->name = shape;
  impl->why_no_tokenizer =
      fmt::format("{}: a model of random weights has no tokenizer, expected ids", shape);
  const Tensor norm = source.tensor("norm_f.weight");
  impl->fingerprint = fingerprint_of(
      source.config(), {"norm_f.weight"}, [&](const std::string&) { return norm.view; },
      [](const std::string&) {});
  return Model(std::move(impl));
}

std::vector<std::string> Model::random_shapes() { return published_names(); }

Session Model::new_session() const { return Session(std::make_unique<Session::Impl>(impl_)); }

const ModelConfig& Model::config() const { return impl_->network->config(); }

bool Model::has_tokenizer() const { return impl_->tokenizer.has_value(); }

const Tokenizer& Model::tokenizer() const {
  check(impl_->tokenizer.has_value(), "{}", impl_->why_no_tokenizer);
  return *impl_->tokenizer;
}

std::int64_t Model::parameter_count() const { return impl_->parameter_count; }
std::int64_t Model::bytes_per_token() const { return impl_->network->bytes_per_token(); }
std::int64_t Model::flops_per_token() const { return impl_->network->flops_per_token(); }
std::int64_t Model::state_bytes() const { return adder::state_bytes(config(), state_dtype()); }
WeightFormat Model::weight_format() const { return impl_->weight_format; }
DType Model::state_dtype() const { return impl_->backend->state_dtype(); }
int Model::nthreads() const { return impl_->backend->nthreads(); }
std::uint64_t Model::fingerprint() const { return impl_->fingerprint; }

}  // namespace adder
