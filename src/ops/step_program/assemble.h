#pragma once

// Operations of a program as instructions: which are one, and which give their results to the next
// without a meeting of all blocks.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "ops/step_program/instructions.h"

namespace adder::cuda::program {

using Operation = std::variant<LinearStepArgs, SsdStepArgs, SelectiveScanStepArgs>;

template <typename X>
struct Assembled {
  std::vector<Instruction<X>> instructions;
  int meetings = 0;
  bool is_linked = false;
  int exchange_size = 0;  ///< numbers
  int residual_size = 0;  ///< floats of a block
};

template <typename X>
Assembled<X> assemble(std::span<const Operation> operations, const Layout& layout, int blocks);

}  // namespace adder::cuda::program
