#pragma once

// What a checkpoint's config.json says, before it is compared with the tensors.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "adder/model_config.h"

namespace adder {

/// A value that the configuration may leave out, with the key it stands (or would stand) under.
template <typename T>
struct Stated {
  std::string key;
  std::optional<T> value;
};

struct StatedConfig {
  /// Name of the configuration in errors.
  std::string source;
  /// Holds what tensors cannot tell; the fields listed below are left at zero.
  ModelConfig model;

  // What tensors tell too. `d_inner_total` is d_mlp + d_inner.
  Stated<std::int64_t> padded_vocab_size, d_inner_total, d_state, d_conv, nheads, headdim, dt_rank,
      d_intermediate;
  Stated<bool> conv_bias, proj_bias, d_has_headdim;
  Stated<bool> tie_embeddings;
  /// Whether the output matrix is tied when nothing says so and a matrix is stored.
  bool ties_by_default = true;
};

/// Parses config.json in either dialect: with `model_type` it is Hugging Face's, with `d_model`
/// that of the original state-spaces repository. `source` names the text in errors. Throws
/// adder::Error for values of the wrong kind or out of range, for a missing value that neither the
/// tensors nor the format itself supply, and, with the reason, for models that Adder does not run.
StatedConfig parse_config(std::string_view text, std::string_view source);

}  // namespace adder
