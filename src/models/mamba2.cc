// Mamba-2's mixer (Dao and Gu 2024, "Transformers are SSMs", section 7.1, figure 6 right):
//
//   [z0, x0, z, xBC, dt] = in_proj(u)        z0 and x0 only with d_mlp > 0
//   [x, B, C] = silu(conv1d(xBC))
//   y = SSD(x, dt, A, B, C) + D x
//   out_proj([x0 · silu(z0),] gated_rms_norm(y, z))

#include "models/network.h"

namespace adder {
namespace {

class Mamba2Mixer final : public Mixer {
 public:
  Mamba2Mixer(WeightLoader& loader, const std::string& prefix)
      : config_(loader.config()),
        in_proj_(loader.linear(prefix + "in_proj")),
        conv_weight_(loader.conv_weight(prefix + "conv1d.weight")),
        conv_bias_(loader.optional_vector(prefix + "conv1d.bias")),
        A_(loader.decay(prefix)),
        D_(loader.vector(prefix + "D")),
        dt_bias_(loader.vector(prefix + "dt_bias")),
        norm_(config_.gated_norm ? loader.vector(prefix + "norm.weight") : Tensor()),
        out_proj_(loader.linear(prefix + "out_proj")) {
    if (D_.view.numel() != config_.nheads) {
      D_.view = D_.view.reshape({config_.nheads, config_.headdim});
    }
  }

  Tensor forward(Backend& backend, const Tensor& u, Tensor& residual, LayerState& state,
                 const Sequences& sequences) const override {
    const std::int64_t d_inner = config_.d_inner;
    const std::int64_t bc_width = config_.ngroups * config_.d_state;
    const std::int64_t z_begin = 2 * config_.d_mlp;
    const std::int64_t xbc_begin = z_begin + d_inner;
    const std::int64_t dt_begin = xbc_begin + d_inner + 2 * bc_width;

    const Tensor projected = backend.linear(u, *in_proj_);
    const Tensor xbc =
        backend.causal_conv1d_silu(backend.columns(projected, xbc_begin, dt_begin - xbc_begin),
                                   conv_weight_, conv_bias_, state.conv, sequences);
    const Tensor y = backend.ssd({.x = backend.columns(xbc, 0, d_inner),
                                  .B = backend.columns(xbc, d_inner, bc_width),
                                  .C = backend.columns(xbc, d_inner + bc_width, bc_width),
                                  .dt = backend.columns(projected, dt_begin, config_.nheads),
                                  .A = A_,
                                  .D = D_,
                                  .dt_bias = dt_bias_,
                                  .ngroups = config_.ngroups,
                                  .chunk_size = config_.chunk_size,
                                  .dt_min = config_.dt_min,
                                  .dt_max = config_.dt_max},
                                 state.ssm, sequences);
    Tensor gated = backend.gated_rms_norm(y, backend.columns(projected, z_begin, d_inner), norm_,
                                          {.ngroups = config_.ngroups,
                                           .epsilon = config_.norm_epsilon,
                                           .norm_before_gate = config_.norm_before_gate,
                                           .normalize = config_.gated_norm});
    if (config_.d_mlp > 0) {
      const Tensor z0 = backend.columns(projected, 0, config_.d_mlp);
      const Tensor x0 = backend.columns(projected, config_.d_mlp, config_.d_mlp);
      gated = backend.concat_columns(backend.gated_mlp(x0, z0), gated);
    }
    return backend.linear_add(residual, gated, *out_proj_);
  }

 private:
  ModelConfig config_;
  std::shared_ptr<const LinearWeight> in_proj_;
  Tensor conv_weight_;
  Tensor conv_bias_;
  Tensor A_;
  Tensor D_;
  Tensor dt_bias_;
  Tensor norm_;
  std::shared_ptr<const LinearWeight> out_proj_;
};

}  // namespace

std::unique_ptr<Mixer> load_mamba2_mixer(WeightLoader& loader, const std::string& prefix) {
  return std::make_unique<Mamba2Mixer>(loader, prefix);
}

}  // namespace adder
