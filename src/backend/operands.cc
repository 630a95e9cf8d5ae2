#include "backend/operands.h"

#include <span>

namespace adder::operands {
namespace {

TensorView heads(const Tensor& matrix, const Tensor& state) {
  return matrix.view.split_last(state.view.dim(1));
}

TensorView one_group(const Tensor& matrix) { return matrix.view.split_last(1); }

}  // namespace

CausalConv1dArgs causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const Tensor& state, const ConstTensorView& cu_seqlens,
                               const Tensor& y) {
  return {.x = x.view,
          .weight = weight.view,
          .bias = bias.view,
          .y = y.view,
          .conv_state = state.view,
          .cu_seqlens = cu_seqlens,
          .seq_idx = {},
          .silu = true};
}

SsdStepArgs ssd_step(const SsdInput& input, const Tensor& state, const Tensor& y) {
  return {.x = heads(input.x, state),
          .dt = input.dt.view,
          .A = input.A.view,
          .B = input.B.view.split_last(input.ngroups),
          .C = input.C.view.split_last(input.ngroups),
          .D = input.D.view,
          .z = {},
          .dt_bias = input.dt_bias.view,
          .dt_softplus = true,
          .dt_min = input.dt_min,
          .dt_max = input.dt_max,
          .state = state.view,
          .y = heads(y, state)};
}

SsdForwardArgs ssd_forward(const SsdInput& input, const Tensor& initial_states,
                           const Tensor& final_states, const ConstTensorView& cu_seqlens,
                           const Tensor& y) {
  return {.x = heads(input.x, initial_states).unsqueeze0(),
          .dt = input.dt.view.unsqueeze0(),
          .A = input.A.view,
          .B = input.B.view.split_last(input.ngroups).unsqueeze0(),
          .C = input.C.view.split_last(input.ngroups).unsqueeze0(),
          .D = input.D.view,
          .z = {},
          .dt_bias = input.dt_bias.view,
          .dt_softplus = true,
          .dt_min = input.dt_min,
          .dt_max = input.dt_max,
          .initial_states = initial_states.view,
          .seq_idx = {},
          .cu_seqlens = cu_seqlens,
          .chunk_size = input.chunk_size,
          .y = heads(y, initial_states).unsqueeze0(),
          .final_states = final_states.view};
}

SelectiveScanStepArgs selective_scan_step(const SelectiveScanInput& input, const Tensor& state,
                                          const Tensor& y) {
  return {.x = input.x.view,
          .dt = input.dt.view,
          .A = input.A.view,
          .B = one_group(input.B),
          .C = one_group(input.C),
          .D = input.D.view,
          .z = input.z.view,
          .dt_bias = input.dt_bias.view,
          .state = state.view,
          .y = y.view,
          .dt_softplus = true};
}

SelectiveScanArgs selective_scan(const SelectiveScanInput& input, const Tensor& state,
                                 const ConstTensorView& cu_seqlens, const Tensor& y) {
  return {.x = input.x.view.unsqueeze0(),
          .dt = input.dt.view.unsqueeze0(),
          .A = input.A.view,
          .B = one_group(input.B).unsqueeze0(),
          .C = one_group(input.C).unsqueeze0(),
          .D = input.D.view,
          .z = input.z.view.unsqueeze0(),
          .dt_bias = input.dt_bias.view,
          .initial_states = state.view,
          .final_states = state.view,
          .cu_seqlens = cu_seqlens,
          .y = y.view.unsqueeze0(),
          .dt_softplus = true};
}

GatedRmsNormArgs gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                                const GatedNormOptions& options, const Tensor& out) {
  return {.y = y.view,
          .z = z.view,
          .weight = weight.view,
          .out = out.view,
          .ngroups = options.ngroups,
          .epsilon = options.epsilon,
          .norm_before_gate = options.norm_before_gate,
          .norm = options.normalize};
}

std::vector<std::int32_t> last_tokens(const Sequences& sequences) {
  const std::span<const std::int32_t> offsets = sequences.cu_seqlens();
  std::vector<std::int32_t> last;
  for (std::size_t s = 1; s < offsets.size(); ++s) {
    if (offsets[s] > offsets[s - 1]) last.push_back(offsets[s] - 1);
  }
  return last;
}

}  // namespace adder::operands
