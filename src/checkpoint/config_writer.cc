#include "checkpoint/config_writer.h"

#include <nlohmann/json.hpp>

#include "core/mapped_file.h"
#include "gguf/gguf_file.h"

namespace adder {

std::string huggingface_config(const ModelConfig& config) {
  const bool mamba2 = config.architecture == Architecture::mamba2;
  const bool falcon = config.architecture == Architecture::falcon_mamba;
  nlohmann::ordered_json out = {
      {"model_type", mamba2   ? "mamba2"
                     : falcon ? "falcon_mamba"
                              : "mamba"},
      {"hidden_size", config.d_model},
      {"num_hidden_layers", config.n_layer},
      {"vocab_size", config.padded_vocab_size},
      {"intermediate_size", config.d_inner},
      {"state_size", config.d_state},
      {"conv_kernel", config.d_conv},
      {"use_conv_bias", config.conv_bias},
      {"use_bias", config.proj_bias},
      {"tie_word_embeddings", config.tie_embeddings},
      {"layer_norm_epsilon", config.norm_epsilon},
      {"residual_in_fp32", config.residual_in_fp32},
  };
  if (mamba2) {
    out["num_heads"] = config.nheads;
    out["head_dim"] = config.headdim;
    out["n_groups"] = config.ngroups;
    out["chunk_size"] = config.chunk_size;
  } else {
    out["time_step_rank"] = config.dt_rank;
    if (falcon) out["mixer_rms_eps"] = config.mixer_norm_epsilon;
  }
  if (config.eos_token_ids.size() == 1) {
    out["eos_token_id"] = config.eos_token_ids[0];
  } else if (!config.eos_token_ids.empty()) {
    out["eos_token_id"] = config.eos_token_ids;
  }
  if (config.bos_token_id) out["bos_token_id"] = *config.bos_token_id;
  if (config.pad_token_id) out["pad_token_id"] = *config.pad_token_id;
  return out.dump(2) + "\n";
}

std::vector<std::byte> gguf_metadata(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return GgufFile(mapped.bytes(), file.string()).without_tensors();
}

}  // namespace adder
