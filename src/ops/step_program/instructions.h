#pragma once

// The arguments of an operation as a program's kernel has them.

#include <cstdint>

#include "ops/linear_step/linear_step.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/ssd_step/ssd_step.h"
#include "ops/step_program/cuda_kernel.h"

namespace adder::cuda::program {

/// The rows [begin, end) of a weight over so many blocks.
Spread spread(std::int64_t begin, std::int64_t end, int blocks);
/// What a gated norm, or another, is as part of a projection.
Before before_of(const LinearStepArgs& args);

template <typename X>
Linear<X> linear_of(const LinearStepArgs& args, int blocks);
Heads heads_of(const SsdStepArgs& args);
template <typename X>
Channels<X> channels_of(const SelectiveScanStepArgs& args);

}  // namespace adder::cuda::program
