// Which operations become one instruction, and which instructions give to the next: decided on the
// host, from where operands are, so that no device is needed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "ops/step_program/assemble.h"
#include "ops/step_program/layout.h"

namespace adder {
namespace {

using cuda::program::Assembled;
using cuda::program::Kind;
using cuda::program::Operation;

constexpr int kBlocks = 132;
constexpr std::int64_t kSharedBytes = 232448;

// Memory that nobody touches: addresses alone count.
class Addresses {
 public:
  TensorView next(DType dtype, std::initializer_list<std::int64_t> dims) {
    const TensorView view(reinterpret_cast<void*>(at_), dtype, dims, {DeviceType::cuda, 0});
    at_ += static_cast<std::uintptr_t>(view.size_bytes() + 255) / 256 * 256;
    return view;
  }

 private:
  std::uintptr_t at_ = 4096;
};

struct Sizes {
  std::int64_t batch = 1, d_model = 768, nheads = 24, headdim = 64, dstate = 128;
};

// Layers of Mamba-2, whose residuals take turns in `nresiduals` places.
std::vector<Operation> stack(const Sizes& s, int nlayers, int nresiduals) {
  Addresses memory;
  const std::int64_t d_inner = s.nheads * s.headdim;
  const std::int64_t channels = d_inner + 2 * s.dstate;
  const std::int64_t out = d_inner + channels + s.nheads;
  std::vector<TensorView> residuals;
  for (int i = 0; i < nresiduals; ++i) {
    residuals.push_back(memory.next(DType::f32, {s.batch, s.d_model}));
  }
  TensorView residual = memory.next(DType::f32, {s.batch, s.d_model});
  TensorView x = memory.next(DType::bf16, {s.batch, s.d_model});
  std::vector<Operation> all;
  for (int i = 0; i < nlayers; ++i) {
    const TensorView projected = memory.next(DType::bf16, {s.batch, out});
    const TensorView xBC = memory.next(DType::bf16, {s.batch, channels});
    const TensorView y = memory.next(DType::bf16, {s.batch, s.nheads, s.headdim});
    const TensorView result = memory.next(DType::bf16, {s.batch, s.d_model});
    const TensorView new_residual = residuals[static_cast<std::size_t>(i % nresiduals)];
    LinearStepArgs in{.x = x,
                      .weight = memory.next(DType::bf16, {out, s.d_model}),
                      .y = projected,
                      .norm = LinearStepNorm{.residual = residual, .new_residual = new_residual},
                      .gated_norm = {},
                      .conv = {}};
    in.conv = LinearStepConv{.begin = d_inner,
                             .weight = memory.next(DType::f32, {channels, 4}),
                             .state = memory.next(DType::f32, {s.batch, 3, channels}),
                             .y = xBC};
    all.emplace_back(in);
    all.emplace_back(
        SsdStepArgs{.x = xBC.narrow(1, 0, d_inner).split_last(s.nheads),
                    .dt = projected.narrow(1, d_inner + channels, s.nheads),
                    .A = memory.next(DType::f32, {s.nheads}),
                    .B = xBC.narrow(1, d_inner, s.dstate).split_last(1),
                    .C = xBC.narrow(1, d_inner + s.dstate, s.dstate).split_last(1),
                    .D = {},
                    .z = {},
                    .dt_bias = {},
                    .state = memory.next(DType::f32, {s.batch, s.nheads, s.headdim, s.dstate}),
                    .y = y});
    TensorView rows = y;
    rows.rank = 2;
    rows.shape[1] = d_inner;
    rows.strides[1] = 1;
    all.emplace_back(
        LinearStepArgs{.x = rows,
                       .weight = memory.next(DType::bf16, {s.d_model, d_inner}),
                       .y = result,
                       .norm = {},
                       .gated_norm = LinearStepGatedNorm{.z = projected.narrow(1, 0, d_inner)},
                       .conv = {}});
    residual = new_residual;
    x = result;
  }
  return all;
}

Assembled<bf16> assembled(const Sizes& s, int nlayers, int nresiduals) {
  const auto in = static_cast<int>(std::max(s.d_model, s.nheads * s.headdim));
  const auto layout = cuda::program::layout_of<bf16>(static_cast<int>(s.batch), in, kSharedBytes);
  return cuda::program::assemble<bf16>(stack(s, nlayers, nresiduals), layout, kBlocks);
}

TEST(StepProgramAssemble, ALayerIsTwoInstructions) {
  const auto program = assembled({}, 5, 5);
  ASSERT_EQ(program.instructions.size(), 10);
  EXPECT_TRUE(program.is_linked);
  EXPECT_EQ(program.meetings, 1);
  for (std::size_t i = 0; i < 10; ++i) {
    const auto& instruction = program.instructions[i];
    EXPECT_EQ(instruction.kind, i % 2 == 0 ? Kind::mixer : Kind::linear);
    EXPECT_FALSE(instruction.enters);
    EXPECT_EQ(instruction.leaves, i == 9);
    EXPECT_EQ(instruction.linear.takes, i > 0);
    // The first residual is memory, the last is left to whoever comes after.
    EXPECT_EQ(instruction.linear.takes_residual, i % 2 == 0 && i > 0);
    EXPECT_EQ(instruction.linear.new_residual.data != nullptr, i == 8);
    if (i == 0) continue;
    EXPECT_EQ(instruction.takes_from.at, program.instructions[i - 1].gives_to.at);
    EXPECT_EQ(instruction.takes_from.turn, program.instructions[i - 1].gives_to.turn);
  }
}

// What is given is not overwritten before all have taken it, and never has the tag of a turn
// before.
TEST(StepProgramAssemble, InstructionsTakeTurns) {
  const auto program = assembled({}, 7, 7);
  std::vector<std::uint32_t> turns(static_cast<std::size_t>(program.exchange_size));
  for (std::size_t i = 0; i + 1 < program.instructions.size(); ++i) {
    const auto& now = program.instructions[i];
    const auto& next = program.instructions[i + 1];
    if (next.kind == Kind::mixer || next.linear.gives) {
      EXPECT_NE(now.gives_to.at, next.gives_to.at);
    }
    EXPECT_EQ(now.gives_to.turn, turns[static_cast<std::size_t>(now.gives_to.at)]++);
  }
  for (std::size_t i = 0; i + 1 < program.instructions.size(); ++i) {
    const auto& link = program.instructions[i].gives_to;
    EXPECT_EQ(link.turns, turns[static_cast<std::size_t>(link.at)]);
  }
}

// A block without rows would fall behind the others without their knowing.
TEST(StepProgramAssemble, EveryBlockHasSomethingToGive) {
  const auto few = assembled({.d_model = 128, .nheads = 2}, 3, 3);  // 128 channels, 132 blocks
  EXPECT_FALSE(few.is_linked);
  EXPECT_EQ(few.instructions.size(), 9);
  EXPECT_EQ(few.meetings, 9);
  const auto narrow = assembled({.d_model = 128, .nheads = 8}, 3, 3);
  EXPECT_TRUE(narrow.is_linked);
  EXPECT_EQ(narrow.instructions.size(), 6);
  EXPECT_EQ(narrow.meetings, 3);  // its results are too few to be given
}

// Memory of residuals is used again: what counts is who reads before it is written anew.
TEST(StepProgramAssemble, ResidualsInTheSamePlace) {
  for (int places : {2, 3, 4}) EXPECT_EQ(assembled({}, 7, places).meetings, 1) << places;
}

// The kernel of links has one sequence: an operation of more in the program means none of them.
TEST(StepProgramAssemble, OperationsOfSeveralBatches) {
  std::vector<Operation> all = stack({}, 1, 1);
  const std::vector<Operation> more = stack({.batch = 2}, 1, 1);
  all.insert(all.end(), more.begin(), more.end());
  const auto layout = cuda::program::layout_of<bf16>(2, 1536, kSharedBytes);
  const auto program = cuda::program::assemble<bf16>(all, layout, kBlocks);
  EXPECT_FALSE(program.is_linked);
  EXPECT_EQ(program.instructions.size(), 6);
}

TEST(StepProgramAssemble, SeveralSequencesMeet) {
  const auto program = assembled({.batch = 2}, 3, 3);
  EXPECT_FALSE(program.is_linked);
  EXPECT_EQ(program.instructions.size(), 9);
  EXPECT_EQ(program.meetings, 9);
}

}  // namespace
}  // namespace adder
