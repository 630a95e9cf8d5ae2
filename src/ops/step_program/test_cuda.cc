// Programs of decode steps on a CUDA device: each operation by itself against its definition, and
// many in a row, with shared memory in every state.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>

#include "cuda/device.h"
#include "cuda/timing.h"
#include "ops/linear_step/test_case.h"
#include "ops/selective_scan_step/test_device.h"
#include "ops/ssd_step/test_device.h"
#include "ops/step_program/step_program.h"
#include "ops/step_program/test_device.h"
#include "tests/support/compare.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using StepProgramCuda = test::OnHopper;
using cuda::StepProgram;
using test::Pooled;
using test::same_bits;
using test::ScanProblem;
using test::StepCase;
using test::StepOnDevice;
using test::StepOutput;
using test::linear_step::Before;
using test::linear_step::Case;
using test::linear_step::Data;
using test::linear_step::DeviceCall;
using test::linear_step::kEverything;
using test::linear_step::Result;

struct Types {
  DType x, y;
};
constexpr Types kTypes[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

template <typename Args>
void run(StepProgram& program, const Args& args) {
  ASSERT_TRUE(program.add(args));
  ASSERT_FALSE(program.is_empty());
  program.compile()->launch(nullptr);
  ASSERT_TRUE(program.is_empty());
}

// Results of float32 where x has 16 bits: of one element, with all its cancellation, at worst.
double tolerance_of(const Case& c) { return c.x == DType::f32 ? 5e-6 : 1e-4; }

void expect_right(const Case& c, std::int64_t gap = 0) {
  SCOPED_TRACE(c.name());
  const Data d(c);
  DeviceCall call(c, d, gap);
  StepProgram program;
  run(program, call.args);
  test::linear_step::expect_right(c, d, call.result(), tolerance_of(c));
}

TEST_F(StepProgramCuda, ProjectionsOfEveryKind) {
  for (const Types& types : kTypes) {
    for (Before before : kEverything) {
      for (std::int64_t batch = 1; batch <= cuda::kMaxStepProgramBatch; ++batch) {
        for (bool conv : {false, true}) {
          if (conv && types.x != types.y) continue;
          expect_right({.batch = batch,
                        .in = 768,
                        .out = 300,
                        .before = before,
                        .conv = conv,
                        .bias = conv,
                        .x = types.x,
                        .weight = DType::bf16,
                        .y = types.y});
        }
      }
    }
  }
}

// Rows that end within a group, a chunk or a stage; fewer and more rows than tiles have.
TEST_F(StepProgramCuda, RowsAndColumnsOfEveryNumber) {
  for (const Types& types : kTypes) {
    for (std::int64_t batch : {1, 2, 4}) {
      for (std::int64_t in : {16, 48, 144, 160, 1008, 1280, 1296, 2560, 4096, 5120}) {
        for (std::int64_t out : {1, 131, 133, 1200}) {
          expect_right({.batch = batch,
                        .in = in,
                        .out = out,
                        .before = Before::norm,
                        .x = types.x,
                        .weight = DType::bf16,
                        .y = types.y});
        }
      }
    }
  }
}

// Rows of a block that its slots have no room for, as in a head.
TEST_F(StepProgramCuda, ManyRows) {
  for (const Types& types : kTypes) {
    for (std::int64_t batch : {1, 3}) {
      for (bool conv : {false, true}) {
        if (conv && types.x != types.y) continue;
        expect_right({.batch = batch,
                      .in = 256,
                      .out = 50288,
                      .before = Before::norm_of_residual,
                      .conv = conv,
                      .x = types.x,
                      .weight = DType::bf16,
                      .y = types.y});
      }
    }
  }
}

TEST_F(StepProgramCuda, GroupsWidthsAndGaps) {
  for (const Types& types : kTypes) {
    Case c{.batch = 3, .in = 256, .out = 90, .x = types.x, .weight = DType::bf16, .y = types.y};
    for (Before before : {Before::gated_norm, Before::gate_after_norm}) {
      for (std::int64_t ngroups : {1, 2, 8}) {
        c.before = before;
        c.ngroups = ngroups;
        expect_right(c, 16);
      }
    }
    if (types.x != types.y) continue;
    c.before = Before::nothing;
    c.conv = true;
    for (c.width = 2; c.width <= 4; ++c.width) expect_right(c, 8);
  }
}

TEST_F(StepProgramCuda, HeadsOfEverySize) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 4}) {
      for (std::int64_t headdim : {1, 3, 64, 100}) {
        for (std::int64_t dstate : {4, 16, 64, 100, 128}) {
          for (std::int64_t nheads : {2, 80}) {
            SCOPED_TRACE(fmt::format("{} batch {} headdim {} dstate {} nheads {}", name_of(dtype),
                                     batch, headdim, dstate, nheads));
            if (nheads * headdim * dstate > 700000) continue;
            const StepCase c({.batch = batch,
                              .nheads = nheads,
                              .headdim = headdim,
                              .ngroups = 2,
                              .dstate = dstate,
                              .dtype = dtype});
            const StepOnDevice step(c);
            StepProgram program;
            if (dstate % 8 != 0 && dtype == DType::bf16) {
              EXPECT_FALSE(program.add(step.args));  // B of the second group is not aligned
              continue;
            }
            run(program, step.args);
            c.expect_right(step.result());
          }
        }
      }
    }
  }
}

TEST_F(StepProgramCuda, ChannelsOfEveryNumber) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t dstate : {4, 16, 64, 256}) {
      Pooled y;
      Pooled states;
      for (std::int64_t batch : {1, 3, 4}) {
        for (std::int64_t d_inner : {1, 50, 1536, 8192}) {
          if (d_inner * dstate > 200000) continue;
          const std::string label = fmt::format("{} batch {} d_inner {} dstate {}", name_of(dtype),
                                                batch, d_inner, dstate);
          const ScanProblem p = test::scan_step::random_step(
              {.batch = batch, .d_inner = d_inner, .dstate = dstate, .ngroups = 1}, dtype,
              d_inner != 50);
          const test::scan_step::DeviceStep step(p, dtype);
          StepProgram program;
          run(program, step.args);
          const auto truth = test::scan_step::reference<double>(p);
          const auto plain = test::scan_step::reference<float>(p);
          const auto got = step.result();
          y.add(got.y, truth.y, test::rounded(plain.y, dtype), label);
          states.add(got.states, truth.states, plain.states, label);
        }
      }
      EXPECT_TRUE(y.as_good_as_plain());
      EXPECT_TRUE(states.as_good_as_plain(dtype == DType::f32 ? 1e-6 : 1e-5));
    }
  }
}

// A row of layers of different sizes, whose operations do not depend on each other, so that each
// has an expected result.
struct Layers {
  explicit Layers(DType x, std::int64_t batch) {
    const DType w = DType::bf16;
    for (int layer = 0; layer < 4; ++layer) {
      const std::int64_t d_model = 256 + 512 * layer;
      add({.batch = batch,
           .in = d_model,
           .out = 4 * d_model + 90,
           .before = Before::norm,
           .conv = true,
           .x = x,
           .weight = w,
           .y = x});
      cases.emplace_back(test::StepShape{.batch = batch,
                                         .nheads = 8 + 8 * layer,
                                         .headdim = 64,
                                         .ngroups = 1,
                                         .dstate = 128,
                                         .dtype = x},
                         static_cast<std::uint64_t>(layer));
      heads.emplace_back(cases.back());
      add({.batch = batch,
           .in = 2 * d_model,
           .out = d_model,
           .before = Before::gated_norm,
           .x = x,
           .weight = w,
           .y = x});
    }
    add({.batch = batch,
         .in = 512,
         .out = 30000,
         .before = Before::norm,
         .x = x,
         .weight = w,
         .y = DType::f32});
  }

  void add(const Case& c) {
    linears.push_back(c);
    data.emplace_back(c);
    calls.emplace_back(c, data.back());
  }

  void add_to(StepProgram& program) {
    std::size_t head = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(program.add(calls[i].args));
      if (i % 2 == 0 && head < heads.size()) {
        ASSERT_TRUE(program.add(heads[head++].args));
      }
    }
  }
  void reset() {
    for (std::size_t i = 0; i < calls.size(); ++i) calls[i].set_state(data[i].state);
    for (auto& h : heads) h.reset();
  }
  void expect_right(cuda::Stream stream) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      test::linear_step::expect_right(linears[i], data[i], calls[i].result(stream),
                                      tolerance_of(linears[i]));
    }
    for (std::size_t i = 0; i < heads.size(); ++i) cases[i].expect_right(heads[i].result(stream));
  }

  std::deque<Case> linears;
  std::deque<Data> data;
  std::deque<DeviceCall> calls;
  std::deque<StepCase> cases;
  std::deque<StepOnDevice> heads;
};

TEST_F(StepProgramCuda, ManyOperationsInARowAndAgain) {
  for (DType x : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} batch {}", name_of(x), batch));
      Layers layers(x, batch);
      StepProgram program;
      const cuda::OwnedStream stream;
      layers.add_to(program);
      const auto kernel = program.compile();
      kernel->launch(stream);
      layers.expect_right(stream);
      const Result first = layers.calls[4].result(stream);
      const cuda::Graph graph(stream, [&] { kernel->launch(stream); });
      for (int i = 0; i < 3; ++i) {
        layers.reset();
        graph.launch(stream);
        layers.expect_right(stream);
        const Result again = layers.calls[4].result(stream);
        EXPECT_TRUE(same_bits(again.conv_y, first.conv_y));
        EXPECT_TRUE(same_bits(again.residual, first.residual));
      }
    }
  }
}

// Each operation reads what the one before wrote: all blocks must have waited for all.
TEST_F(StepProgramCuda, AChainSeesWhatWentBefore) {
  constexpr std::int64_t kSize = 1024;
  constexpr int kLength = 40;
  test::DeviceBuffer weight(DType::bf16, test::Random(3).normals(kSize * kSize, 1.0 / 32));
  test::DeviceBuffer x(DType::f32, test::Random(4).normals(kSize));
  std::deque<test::DeviceBuffer> alone;
  std::deque<test::DeviceBuffer> together;
  const auto chain = [&](std::deque<test::DeviceBuffer>& buffers, const auto& call) {
    const test::DeviceBuffer* before = &x;
    for (int i = 0; i < kLength; ++i) {
      buffers.emplace_back(DType::f32, kSize);
      call(LinearStepArgs{.x = before->view({1, kSize}),
                          .weight = weight.view({kSize, kSize}),
                          .y = buffers.back().view({1, kSize})});
      before = &buffers.back();
    }
  };
  chain(alone, [](const LinearStepArgs& args) { cuda::linear_step(args, nullptr); });
  for (int repeat = 0; repeat < 20; ++repeat) {
    together.clear();
    StepProgram program;
    chain(together, [&](const LinearStepArgs& args) { ASSERT_TRUE(program.add(args)); });
    program.compile()->launch(nullptr);
    for (std::size_t i = 0; i < kLength; ++i) {
      ASSERT_LE(test::relative_error(together[i].values(), test::to_double(alone[i].values())),
                2e-5)
          << "operation " << i;
    }
  }
}

TEST_F(StepProgramCuda, SaysWhatItDoesNotTake) {
  const auto takes = [](const Case& c) {
    const Data d(c);
    return StepProgram().add(DeviceCall(c, d).args);
  };
  const Case good{.x = DType::bf16, .weight = DType::bf16, .y = DType::bf16};
  EXPECT_TRUE(takes(good));
  Case c = good;
  c.batch = 5;
  EXPECT_FALSE(takes(c));
  EXPECT_FALSE(takes({}));  // a weight of float32
  c = good;
  c.x = c.weight = c.y = DType::f16;
  EXPECT_FALSE(takes(c));
  c = good;
  c.in = 72;
  EXPECT_FALSE(takes(c));
  c = good;
  c.conv = true;
  c.width = 5;
  EXPECT_FALSE(takes(c));
  c = good;
  c.batch = 4;
  c.in = 16384;
  EXPECT_FALSE(takes(c));

  // Of one type of x.
  StepProgram program;
  const Data d(good);
  EXPECT_TRUE(program.add(DeviceCall(good, d).args));
  const StepCase f32({.dstate = 16});
  EXPECT_FALSE(program.add(StepOnDevice(f32).args));
  EXPECT_FALSE(program.is_empty());
  EXPECT_FALSE(StepProgram().add(StepOnDevice(StepCase({.dstate = 18})).args));
  EXPECT_FALSE(StepProgram().add(StepOnDevice(StepCase({.dstate = 256})).args));
  const StepCase rounded({.dstate = 16, .state_dtype = DType::bf16});
  EXPECT_FALSE(StepProgram().add(StepOnDevice(rounded).args));
  const test::ScanProblem scan =
      test::scan_step::random_step({.d_inner = 32}, DType::bf16, true, DType::bf16);
  EXPECT_FALSE(
      StepProgram().add(test::scan_step::DeviceStep(scan, DType::bf16, 0, 0, DType::bf16).args));
}

}  // namespace
}  // namespace adder
