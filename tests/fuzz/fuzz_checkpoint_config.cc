// Configurations and shard indices from text. A configuration that parses is also compared with the
// tensors of a small model of its architecture.

#include <cstdint>
#include <string_view>

#include "adder/error.h"
#include "checkpoint/model_tensors.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/stated_config.h"

namespace {

using adder::ConstTensorView;
using adder::ModelTensors;

/// Tensors without data of the shapes that `config` calls for.
ModelTensors tensors_of(const adder::ModelConfig& config) {
  ModelTensors tensors;
  adder::for_each_tensor(config, [&](const std::string& name, std::vector<std::int64_t> shape) {
    tensors[name] = {.view = ConstTensorView(nullptr, adder::DType::f32, shape),
                     .name = name,
                     .source = "weights"};
  });
  return tensors;
}

adder::ModelConfig small_config(adder::Architecture architecture) {
  adder::ModelConfig config;
  config.architecture = architecture;
  config.d_model = 8;
  config.n_layer = 1;
  config.padded_vocab_size = 16;
  config.d_inner = 16;
  config.d_state = 4;
  config.d_conv = 4;
  config.conv_bias = true;
  config.nheads = 4;
  config.headdim = 4;
  config.ngroups = 1;
  config.gated_norm = true;
  config.dt_rank = 1;
  return config;
}

/// The tensors that fit `architecture`.
const ModelTensors& small_tensors(adder::Architecture architecture) {
  static const ModelTensors mamba1 = tensors_of(small_config(adder::Architecture::mamba1));
  static const ModelTensors mamba2 = tensors_of(small_config(adder::Architecture::mamba2));
  return architecture == adder::Architecture::mamba2 ? mamba2 : mamba1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const adder::StatedConfig stated = adder::parse_config(text, "config");
    ModelTensors tensors = small_tensors(stated.model.architecture);
    adder::resolve_config(stated, tensors, "fuzz");
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  try {
    adder::parse_shard_index(text, "index");
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  return 0;
}
