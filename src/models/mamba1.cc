// Mamba-1's mixer (Gu and Dao 2023, "Mamba", section 3.4 and algorithm 2), and Falcon-Mamba's,
// which normalizes dt, B and C without weights before they are used (Zuo et al. 2024, section 2):
//
//   [x, z] = in_proj(u)
//   x = silu(conv1d(x))
//   [dt_low, B, C] = x_proj(x)
//   y = selective_scan(x, dt_proj(dt_low), A, B, C) + D x,  times silu(z)
//   out_proj(y)

#include "models/network.h"

namespace adder {
namespace {

class Mamba1Mixer final : public Mixer {
 public:
  Mamba1Mixer(WeightLoader& loader, const std::string& prefix)
      : config_(loader.config()),
        in_proj_(loader.linear(prefix + "in_proj")),
        conv_weight_(loader.conv_weight(prefix + "conv1d.weight")),
        conv_bias_(loader.optional_vector(prefix + "conv1d.bias")),
        x_proj_(loader.linear(prefix + "x_proj")),
        dt_proj_(loader.linear_without_bias(prefix + "dt_proj")),
        dt_bias_(loader.vector(prefix + "dt_proj.bias")),
        A_(loader.decay(prefix)),
        D_(loader.vector(prefix + "D")),
        out_proj_(loader.linear(prefix + "out_proj")) {}

  Tensor forward(Backend& backend, const Tensor& u, Tensor& residual, LayerState& state,
                 const Sequences& sequences) const override {
    const std::int64_t d_inner = config_.d_inner;
    const std::int64_t dt_rank = config_.dt_rank;
    const std::int64_t d_state = config_.d_state;

    const Tensor projected = backend.linear(u, *in_proj_);
    const Tensor x = backend.causal_conv1d_silu(backend.columns(projected, 0, d_inner),
                                                conv_weight_, conv_bias_, state.conv, sequences);
    const Tensor low = backend.linear(x, *x_proj_);
    Tensor dt_low = backend.columns(low, 0, dt_rank);
    Tensor B = backend.columns(low, dt_rank, d_state);
    Tensor C = backend.columns(low, dt_rank + d_state, d_state);
    if (config_.architecture == Architecture::falcon_mamba) {
      const Tensor no_weight;
      dt_low = backend.rms_norm(dt_low, no_weight, config_.mixer_norm_epsilon);
      B = backend.rms_norm(B, no_weight, config_.mixer_norm_epsilon);
      C = backend.rms_norm(C, no_weight, config_.mixer_norm_epsilon);
    }
    const Tensor y = backend.selective_scan({.x = x,
                                             .dt = backend.linear(dt_low, *dt_proj_),
                                             .A = A_,
                                             .B = B,
                                             .C = C,
                                             .D = D_,
                                             .z = backend.columns(projected, d_inner, d_inner),
                                             .dt_bias = dt_bias_},
                                            state.ssm, sequences);
    return backend.linear_add(residual, y, *out_proj_);
  }

 private:
  ModelConfig config_;
  std::shared_ptr<const LinearWeight> in_proj_;
  Tensor conv_weight_;
  Tensor conv_bias_;
  std::shared_ptr<const LinearWeight> x_proj_;
  std::shared_ptr<const LinearWeight> dt_proj_;
  Tensor dt_bias_;
  Tensor A_;
  Tensor D_;
  std::shared_ptr<const LinearWeight> out_proj_;
};

}  // namespace

std::unique_ptr<Mixer> load_mamba1_mixer(WeightLoader& loader, const std::string& prefix) {
  return std::make_unique<Mamba1Mixer>(loader, prefix);
}

}  // namespace adder
