#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adder {

enum class Architecture { mamba1, mamba2, falcon_mamba };

constexpr std::string_view name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::mamba1:
      return "mamba1";
    case Architecture::mamba2:
      return "mamba2";
    case Architecture::falcon_mamba:
      return "falcon-mamba";
  }
  return "unknown";
}

/// Every number a model needs besides its weights, whichever dialect the checkpoint was written
/// in. Fields of another architecture are zero. `Checkpoint::open` has compared all of it with the
/// tensors.
struct ModelConfig {
  Architecture architecture = Architecture::mamba2;
  /// "huggingface", "state-spaces" or "gguf".
  std::string format;

  std::int64_t d_model = 0;
  std::int64_t n_layer = 0;
  /// Logical size: logits and rows at and above it are padding.
  std::int64_t vocab_size = 0;
  /// Rows of the embedding as stored.
  std::int64_t padded_vocab_size = 0;

  /// Channels of the state-space part (for Mamba-2 nheads · headdim).
  std::int64_t d_inner = 0;
  std::int64_t d_state = 0;
  /// Width of the causal convolution.
  std::int64_t d_conv = 0;

  // Mamba-2
  std::int64_t nheads = 0;
  std::int64_t headdim = 0;
  std::int64_t ngroups = 0;
  /// What the model was trained with; results do not depend on it.
  std::int64_t chunk_size = 0;
  /// Limits of dt after softplus.
  float dt_min = 0.0F;
  float dt_max = std::numeric_limits<float>::infinity();
  /// The gated norm normalizes first and multiplies by silu(z) then; false is the usual order.
  bool norm_before_gate = false;
  /// False: y · silu(z) alone, there is no mixer.norm.weight.
  bool gated_norm = false;
  /// D is (nheads, headdim) and not (nheads).
  bool d_has_headdim = false;
  /// Channels of the gated MLP inside the mixer: in_proj starts with its z0 and x0, and out_proj
  /// takes silu(z0) · x0 before y, (d_mlp + d_inner) columns in all. 0 = none.
  std::int64_t d_mlp = 0;

  // Mamba-1 and Falcon-Mamba
  std::int64_t dt_rank = 0;
  /// Falcon-Mamba: epsilon of the weightless norms on dt, B and C.
  float mixer_norm_epsilon = 0.0F;

  /// Hidden channels of the gated MLP after the mixer; 0 = none.
  std::int64_t d_intermediate = 0;
  /// fc1 and fc2 of that MLP have a bias.
  bool mlp_bias = false;
  /// Layers have mixer.A, which is negative, and not mixer.A_log, of which A = -exp(A_log).
  bool stores_A = false;
  bool conv_bias = false;
  /// in_proj and out_proj have a bias.
  bool proj_bias = false;
  /// The embedding is the output matrix too; there is no lm_head.weight.
  bool tie_embeddings = false;
  float norm_epsilon = 0.0F;
  bool residual_in_fp32 = true;

  std::vector<int> eos_token_ids;
  std::optional<int> bos_token_id;
  std::optional<int> pad_token_id;

  /// Channels that pass through the causal convolution.
  std::int64_t conv_dim() const {
    return architecture == Architecture::mamba2 ? d_inner + 2 * ngroups * d_state : d_inner;
  }
};

}  // namespace adder
