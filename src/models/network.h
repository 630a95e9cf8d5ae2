#pragma once

// The layers of a state-space language model, written once against Backend.
//
//   r = embedding(ids)
//   for each layer:   r += mixer(rms_norm(r))      [ r += mlp(rms_norm(r))  with d_intermediate ]
//   hidden = rms_norm(r),   logits = hidden · headᵀ
//
// The residual stream r is float32 (Gu and Dao 2023, section 3.4; Dao and Gu 2024, section 7).

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "models/weight_source.h"

namespace adder {

/// The recurrent state of one layer for a number of sequences.
struct LayerState {
  Tensor conv;  ///< (nsequences, d_conv - 1, conv channels): inputs of the convolution
  Tensor ssm;   ///< (nsequences, nheads, headdim, dstate) or (nsequences, d_inner, dstate)
};

using NetworkState = std::vector<LayerState>;

/// What the layers of one architecture do between the two norms. One file per architecture
/// implements it.
class Mixer {
 public:
  virtual ~Mixer() = default;
  /// x (ntokens, d_model), normalized. Adds to the residual stream, or returns what is still to be
  /// added, (ntokens, d_model): see Backend::linear_add.
  virtual Tensor forward(Backend& backend, const Tensor& x, Tensor& residual, LayerState& state,
                         const Sequences& sequences) const = 0;
};

/// Whether a tensor, by its canonical name, is a matrix that may be held as integers: the large
/// ones. Small projections of Mamba-1 (x_proj, dt_proj), on which its time steps depend, are not.
bool may_be_quantized(const ModelConfig& config, std::string_view name);

/// Loads one layer's weights: uploads tensors by their name inside the layer's mixer.
class WeightLoader {
 public:
  /// `format`: what matrices are held as; none keeps each as it is stored.
  WeightLoader(const WeightSource& source, Backend& backend, std::optional<WeightFormat> format)
      : source_(source), backend_(backend), format_(format) {}

  const ModelConfig& config() const { return source_.config(); }
  Tensor vector(const std::string& name);
  Tensor optional_vector(const std::string& name);
  /// A of the recurrence in float32: `mixer`A as it is, or -exp of `mixer`A_log.
  Tensor decay(const std::string& mixer);
  Tensor conv_weight(const std::string& name);
  /// The matrix `name`.weight with the bias `name`.bias if there is one.
  std::shared_ptr<const LinearWeight> linear(const std::string& name);
  std::shared_ptr<const LinearWeight> linear_without_bias(const std::string& name);
  Tensor embedding(const std::string& name);
  /// Whether the embedding is looked up in the head that it is tied to: the backend does that, and
  /// the head holds it as it is stored.
  bool embeds_from_head(const std::string& name) const;
  /// The head, a matrix of its own.
  std::shared_ptr<const LinearWeight> head(const std::string& name);
  /// The head that is the embedding's matrix.
  std::shared_ptr<const LinearWeight> tied_head(const std::string& name, const Tensor& embedding);

  Backend& backend() { return backend_; }
  /// Bytes that one decoded token reads of what was loaded so far.
  std::int64_t bytes_per_token() const { return bytes_per_token_; }
  /// Multiply-adds per token of the matrices loaded so far, twice.
  std::int64_t matrix_flops() const { return matrix_flops_; }

 private:
  std::shared_ptr<const LinearWeight> upload(const std::string& weight, const std::string& bias);
  WeightFormat format_for(const std::string& name) const;

  const WeightSource& source_;
  Backend& backend_;
  std::optional<WeightFormat> format_;
  std::int64_t bytes_per_token_ = 0;
  std::int64_t matrix_flops_ = 0;
};

class Network {
 public:
  /// Loads every weight, matrices as `format` or as they are stored. `progress` (may be
  /// empty) hears the fraction done.
  Network(const WeightSource& source, Backend& backend, std::optional<WeightFormat> format,
          const std::function<void(double)>& progress);

  /// A zero state for `nsequences` sequences.
  NetworkState new_state(Backend& backend, std::int64_t nsequences) const;

  /// Sees the residual stream after the embedding (layer 0) and after each layer.
  using Observer = std::function<void(std::int64_t layer, const Tensor& residual)>;

  /// Feeds tokens (ids on the device) and returns the final norm's output (ntokens, d_model).
  Tensor forward(Backend& backend, const Tensor& ids, const Sequences& sequences,
                 NetworkState& state, const Observer& observer = {}) const;

  /// (rows, padded_vocab_size) from rows of the final norm's output.
  Tensor logits(Backend& backend, const Tensor& hidden) const;

  const ModelConfig& config() const { return config_; }
  std::int64_t bytes_per_token() const { return bytes_per_token_; }
  std::int64_t flops_per_token() const { return flops_per_token_; }

 private:
  struct Layer {
    Tensor norm;
    std::unique_ptr<Mixer> mixer;
    // The MLP after the mixer, with d_intermediate > 0.
    Tensor mlp_norm;
    std::shared_ptr<const LinearWeight> fc1;
    std::shared_ptr<const LinearWeight> fc2;
  };

  /// Like Mixer::forward.
  Tensor mlp(Backend& backend, const Layer& layer, const Tensor& x, Tensor& residual) const;

  ModelConfig config_;
  Tensor embedding_;  ///< undefined: rows of the head
  std::vector<Layer> layers_;
  Tensor final_norm_;
  std::shared_ptr<const LinearWeight> head_;
  std::int64_t bytes_per_token_ = 0;
  std::int64_t flops_per_token_ = 0;
};

/// Sequence `to_row` of `to` = sequence `from_row` of `from`, of one network, in the memory of
/// `to`.
void copy_state(Backend& backend, NetworkState& to, std::int64_t to_row, const NetworkState& from,
                std::int64_t from_row);

/// The extents of one layer's state tensors for one sequence, without the leading dimension.
struct LayerStateShape {
  std::vector<std::int64_t> conv;
  std::vector<std::int64_t> ssm;
};
LayerStateShape layer_state_shape(const ModelConfig& config);

/// Bytes of state of one sequence, of which that of recurrences is held as `recurrent`.
std::int64_t state_bytes(const ModelConfig& config, DType recurrent = DType::f32);

// The architectures: `prefix` names the layer's mixer, for instance "layers.3.mixer.".
std::unique_ptr<Mixer> load_mamba1_mixer(WeightLoader& loader, const std::string& prefix);
std::unique_ptr<Mixer> load_mamba2_mixer(WeightLoader& loader, const std::string& prefix);

}  // namespace adder
