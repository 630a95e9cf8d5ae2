#pragma once

// What backends call operations with: the same views of the same tensors, wherever these are.

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/selective_scan/selective_scan.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/ssd_forward/ssd_forward.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder::operands {

/// With SiLU. `cu_seqlens` may be undefined: one sequence.
CausalConv1dArgs causal_conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const Tensor& state, const ConstTensorView& cu_seqlens,
                               const Tensor& y);

SsdStepArgs ssd_step(const SsdInput& input, const Tensor& state, const Tensor& y);
/// `final_states` may be `initial_states`.
SsdForwardArgs ssd_forward(const SsdInput& input, const Tensor& initial_states,
                           const Tensor& final_states, const ConstTensorView& cu_seqlens,
                           const Tensor& y);

SelectiveScanStepArgs selective_scan_step(const SelectiveScanInput& input, const Tensor& state,
                                          const Tensor& y);
/// The state is updated in place.
SelectiveScanArgs selective_scan(const SelectiveScanInput& input, const Tensor& state,
                                 const ConstTensorView& cu_seqlens, const Tensor& y);

GatedRmsNormArgs gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                                const GatedNormOptions& options, const Tensor& out);

/// Of every sequence that has tokens, the number of the last one among the tokens of all.
std::vector<std::int32_t> last_tokens(const Sequences& sequences);

}  // namespace adder::operands
