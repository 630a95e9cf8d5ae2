#include <set>

#include "checkpoint/model_tensors.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 26;  // see ConfigFields::size
constexpr std::string_view kOutput = "lm_head.weight";

/// Reads dimensions off the tensors and compares them with what the configuration states.
class Resolver {
 public:
  Resolver(const StatedConfig& stated, ModelTensors& tensors, std::string_view source)
      : stated_(stated), tensors_(tensors), source_(source), model_(stated.model) {}

  ModelConfig resolve() {
    if (tensors_.contains("layers.0.mixer.A")) model_.stores_A = true;
    model_.padded_vocab_size = extent("embedding.weight", 2, 0);
    agree(stated_.padded_vocab_size, model_.padded_vocab_size, "embedding.weight", "rows");
    model_.conv_bias = presence(stated_.conv_bias, "layers.0.mixer.conv1d.bias");
    model_.proj_bias = presence(stated_.proj_bias, "layers.0.mixer.in_proj.bias");
    model_.d_conv = extent(kConvolution, 2, 1);
    agree(stated_.d_conv, model_.d_conv, kConvolution, "taps");
    const std::int64_t total = extent(kOutProj, 2, 1);
    agree(stated_.d_inner_total, total, kOutProj, "columns");
    check(total > model_.d_mlp, "{}: d_mlp is {}, but out_proj has {} columns", stated_.source,
          model_.d_mlp, total);
    model_.d_inner = total - model_.d_mlp;
    if (model_.architecture == Architecture::mamba2) {
      resolve_mamba2();
    } else {
      resolve_mamba1();
    }
    resolve_mlp();
    resolve_output();
    check_all();
    return model_;
  }

 private:
  static constexpr std::string_view kConvolution = "layers.0.mixer.conv1d.weight";
  static constexpr std::string_view kOutProj = "layers.0.mixer.out_proj.weight";
  static constexpr std::string_view kD = "layers.0.mixer.D";

  /// The tensor that A comes from.
  std::string_view decay_name() const {
    return model_.stores_A ? "layers.0.mixer.A" : "layers.0.mixer.A_log";
  }

  const StoredTensor& tensor(std::string_view name) const {
    const auto found = tensors_.find(name);
    check(found != tensors_.end(), "{} has no tensor {}, which a {} model of {} layers needs",
          source_, in_quotes(name), name_of(model_.architecture), model_.n_layer);
    return found->second;
  }

  /// Extent `axis` of a tensor that must have `rank` dimensions.
  std::int64_t extent(std::string_view name, int rank, int axis) const {
    const StoredTensor& stored = tensor(name);
    check(stored.view.rank == rank, "{}: tensor {} has shape {}, expected {} dimensions",
          stored.source, in_quotes(stored.name), shape_string(stored.view.dims()), rank);
    const std::int64_t value = stored.view.dim(axis);
    check(value >= 1 && value <= kMaxExtent,
          "{}: tensor {} has shape {}, expected extents from 1 to {}", stored.source,
          in_quotes(stored.name), shape_string(stored.view.dims()), kMaxExtent);
    return value;
  }

  void agree(const Stated<std::int64_t>& stated, std::int64_t found, std::string_view name,
             std::string_view what) const {
    if (!stated.value || *stated.value == found) return;
    const StoredTensor& stored = tensor(name);
    fail("{}: {} is {}, but tensor {} of shape {} in {} has {} {}", stated_.source, stated.key,
         *stated.value, in_quotes(stored.name), shape_string(stored.view.dims()), stored.source,
         found, what);
  }

  bool presence(const Stated<bool>& stated, std::string_view name) const {
    const auto found = tensors_.find(name);
    const bool present = found != tensors_.end();
    check(!stated.value || *stated.value == present, "{}: {} is {}, but {} {} {}", stated_.source,
          stated.key, !present, source_, present ? "has the tensor" : "has no tensor",
          in_quotes(present ? found->second.name : name));
    return present;
  }

  void resolve_mamba1() {
    model_.d_state = extent(decay_name(), 2, 1);
    agree(stated_.d_state, model_.d_state, decay_name(), "columns");
    constexpr std::string_view kDtProj = "layers.0.mixer.dt_proj.weight";
    model_.dt_rank = extent(kDtProj, 2, 1);
    agree(stated_.dt_rank, model_.dt_rank, kDtProj, "columns");
  }

  void resolve_mamba2() {
    model_.nheads = extent(decay_name(), 1, 0);
    agree(stated_.nheads, model_.nheads, decay_name(), "heads");
    check(model_.d_inner % model_.nheads == 0,
          "{}: {} channels (columns of out_proj{}) do not divide among {} heads (length of {})",
          source_, model_.d_inner, model_.d_mlp > 0 ? " less d_mlp" : "", model_.nheads,
          decay_name());
    model_.headdim = model_.d_inner / model_.nheads;
    agree(stated_.headdim, model_.headdim, decay_name(),
          fmt::format("channels per head of {} in all", model_.d_inner));
    const std::int64_t channels = extent(kConvolution, 2, 0);
    const std::int64_t b_and_c = channels - model_.d_inner;
    check(b_and_c > 0 && b_and_c % (2 * model_.ngroups) == 0,
          "{}: conv1d has {} channels, expected {} for x and the same number for B and C in each "
          "of {} groups",
          source_, channels, model_.d_inner, model_.ngroups);
    check(model_.nheads % model_.ngroups == 0, "{}: {} heads do not divide into {} groups",
          stated_.source, model_.nheads, model_.ngroups);
    model_.d_state = b_and_c / (2 * model_.ngroups);
    agree(stated_.d_state, model_.d_state, kConvolution,
          fmt::format("channels, which is a state size of {}", model_.d_state));
    // One D per channel is stored flat.
    const StoredTensor& d = tensor(kD);
    model_.d_has_headdim = model_.headdim > 1 ? d.view.rank == 1 && d.view.dim(0) == model_.d_inner
                                              : stated_.d_has_headdim.value.value_or(false);
    if (stated_.d_has_headdim.value && *stated_.d_has_headdim.value != model_.d_has_headdim) {
      fail("{}: {} is {}, but tensor {} in {} has shape {}", stated_.source,
           stated_.d_has_headdim.key, *stated_.d_has_headdim.value, in_quotes(d.name), d.source,
           shape_string(d.view.dims()));
    }
    if (model_.d_has_headdim) split_d();
  }

  /// Every flat D of d_inner elements becomes (nheads, headdim); the final check sees the others.
  void split_d() {
    for (auto& [name, stored] : tensors_) {
      ConstTensorView& view = stored.view;
      if (!name.ends_with(".mixer.D") || view.rank != 1 || view.dim(0) != model_.d_inner) continue;
      view.rank = 2;
      view.shape[0] = model_.nheads;
      view.shape[1] = model_.headdim;
      view.strides[1] = view.strides[0];
      view.strides[0] *= model_.headdim;
    }
  }

  void resolve_mlp() {
    constexpr std::string_view kFc2 = "layers.0.mlp.fc2.weight";
    if (*stated_.d_intermediate.value == 0) return;
    // mamba_ssm rounds the hidden channels up to a multiple of 128.
    const std::int64_t rounded = (*stated_.d_intermediate.value + 127) / 128 * 128;
    model_.d_intermediate = extent(kFc2, 2, 1);
    if (model_.d_intermediate != rounded) {
      agree(stated_.d_intermediate, model_.d_intermediate, kFc2, "columns");
    }
    model_.mlp_bias = tensors_.contains("layers.0.mlp.fc1.bias");
  }

  void resolve_output() {
    const bool stored = tensors_.contains(kOutput);
    model_.tie_embeddings =
        stated_.tie_embeddings.value.value_or(!stored || stated_.ties_by_default);
    if (model_.tie_embeddings && stored) tensors_.erase(tensors_.find(kOutput));
  }

  void check_all() const {
    std::set<std::string, std::less<>> expected;
    for_each_tensor(model_, [&](const std::string& name, std::vector<std::int64_t> shape) {
      const StoredTensor& stored = tensor(name);
      const auto dims = stored.view.dims();
      check(std::vector(dims.begin(), dims.end()) == shape,
            "{}: tensor {} has shape {}, expected {}", stored.source, in_quotes(stored.name),
            shape_string(dims), shape_string(shape));
      check(is_floating(stored.view.dtype) && stored.view.dtype != DType::f64,
            "{}: tensor {} has dtype {}, expected f32, bf16 or f16", stored.source,
            in_quotes(stored.name), name_of(stored.view.dtype));
      expected.insert(name);
    });
    for (const auto& [name, stored] : tensors_) {
      check(expected.contains(name),
            "{}: tensor {} is no part of a {} model of {} layers, and without it results would be "
            "wrong",
            stored.source, in_quotes(stored.name), name_of(model_.architecture), model_.n_layer);
    }
  }

  const StatedConfig& stated_;
  ModelTensors& tensors_;
  std::string_view source_;
  ModelConfig model_;
};

}  // namespace

ModelConfig resolve_config(const StatedConfig& stated, ModelTensors& tensors,
                           std::string_view source) {
  return Resolver(stated, tensors, source).resolve();
}

}  // namespace adder
