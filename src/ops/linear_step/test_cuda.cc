#include <gtest/gtest.h>

#include "cuda/timing.h"
#include "ops/linear_step/test_case.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using LinearStepCuda = test::OnDevice;
using test::error_of;
using test::linear_step::Before;
using test::linear_step::Case;
using test::linear_step::Data;
using test::linear_step::DeviceCall;
using test::linear_step::kEverything;
using test::linear_step::Result;

Result run(DeviceCall& call) {
  cuda::linear_step(call.args, nullptr);
  return call.result();
}

void expect_right(const Case& c, std::int64_t gap = 0) {
  const Data d(c);
  DeviceCall call(c, d, gap);
  test::linear_step::expect_right(c, d, run(call));
}

TEST_F(LinearStepCuda, EqualsTheOperationsOneByOne) {
  for (Before before : kEverything) {
    for (std::int64_t batch = 1; batch <= cuda::kMaxLinearStepBatch; ++batch) {
      for (bool conv : {false, true}) {
        expect_right({.batch = batch, .in = 768, .out = 300, .before = before, .conv = conv});
      }
    }
  }
}

TEST_F(LinearStepCuda, EveryDtype) {
  const DType all[][3] = {
      {DType::f32, DType::f32, DType::f32},   {DType::f32, DType::bf16, DType::f32},
      {DType::f32, DType::f16, DType::f32},   {DType::bf16, DType::bf16, DType::bf16},
      {DType::bf16, DType::bf16, DType::f32}, {DType::f16, DType::f16, DType::f16},
      {DType::f16, DType::f16, DType::f32}};
  for (const auto& [x, weight, y] : all) {
    for (Before before : kEverything) {
      for (std::int64_t batch : {1, 2, 5}) {
        expect_right({.batch = batch,
                      .in = 520,
                      .out = 77,
                      .before = before,
                      .conv = x == y,
                      .bias = true,
                      .x = x,
                      .weight = weight,
                      .y = y});
      }
    }
  }
}

// Fewer rows than blocks, groups and steps that spans cut anywhere, and wide rows.
TEST_F(LinearStepCuda, RowsAndColumnsOfEveryNumber) {
  for (std::int64_t batch : {1, 2, 3, 8}) {
    for (std::int64_t in : {4, 8, 124, 128, 132, 1000, 2560, 5120}) {
      for (std::int64_t out : {1, 3, 131, 133, 1000}) {
        if (in * out > 1500000) continue;
        expect_right({.batch = batch, .in = in, .out = out, .before = Before::norm});
      }
    }
  }
}

TEST_F(LinearStepCuda, GroupsWidthsAndGaps) {
  for (std::int64_t ngroups : {1, 2, 8}) {
    for (Before before : {Before::gated_norm, Before::gate_after_norm}) {
      expect_right({.batch = 3, .in = 256, .out = 90, .before = before, .ngroups = ngroups}, 12);
    }
  }
  for (std::int64_t width = 2; width <= 8; ++width) {
    expect_right({.batch = 2, .in = 64, .out = 90, .conv = true, .width = width}, 4);
  }
}

TEST_F(LinearStepCuda, ASequenceDependsOnNoOther) {
  for (Before before : kEverything) {
    Case c{.batch = 8, .in = 384, .out = 200, .before = before, .conv = true};
    const Data all(c);
    for (std::int64_t batch : {5, 8}) {
      c.batch = batch;
      Data some = all;
      for (auto* values : {&some.x, &some.z, &some.residual}) {
        values->resize(static_cast<std::size_t>(batch * c.in));
        for (std::size_t i = static_cast<std::size_t>(c.in); i < values->size(); ++i) {
          (*values)[i] *= batch == 5 ? 0.5F : 3.0F;
        }
      }
      some.state.resize(static_cast<std::size_t>(batch * 3 * c.channels()));
      static Result first;
      DeviceCall call(c, some);
      const Result got = run(call);
      const auto row = static_cast<std::size_t>(c.out);
      if (batch == 5) {
        first = got;
      } else {
        EXPECT_TRUE(
            test::same_bits(std::span(got.y).first(row / 4), std::span(first.y).first(row / 4)));
        EXPECT_TRUE(test::same_bits(std::span(got.conv_y).first(row / 2),
                                    std::span(first.conv_y).first(row / 2)));
      }
    }
  }
}

TEST_F(LinearStepCuda, RunsAndReplaysAgreeBitForBit) {
  const Case c{.batch = 2, .in = 2560, .out = 700, .before = Before::norm, .conv = true};
  const Data d(c);
  DeviceCall call(c, d);
  const Result first = run(call);
  cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { cuda::linear_step(call.args, stream); });
  for (int i = 0; i < 3; ++i) {
    call.set_state(d.state);
    graph.launch(stream);
    const Result got = call.result(stream);
    EXPECT_TRUE(test::same_bits(got.conv_y, first.conv_y));
    EXPECT_TRUE(test::same_bits(got.state, first.state));
    EXPECT_TRUE(test::same_bits(std::span(got.y).first(100), std::span(first.y).first(100)));
  }
}

TEST_F(LinearStepCuda, SaysWhatItDoesNotTake) {
  const auto takes = [](const Case& c, std::int64_t gap = 0) {
    return cuda::can_linear_step(DeviceCall(c, Data(c), gap).args);
  };
  EXPECT_TRUE(takes({}));
  EXPECT_TRUE(takes({.batch = 8}));
  EXPECT_FALSE(takes({.batch = 9}));
  EXPECT_FALSE(takes({.in = 66}));
  EXPECT_FALSE(takes({.batch = 2}, 1));
  EXPECT_FALSE(takes({.batch = 8, .in = 8192, .out = 4}));
}

TEST(LinearStepCudaErrors, NameTheArgumentThatIsWrong) {
  float memory[2] = {};
  const Device where{DeviceType::cuda, 0};
  const auto view = [&](std::initializer_list<std::int64_t> dims, int i = 0) {
    return TensorView(&memory[i], DType::f32, dims, where);
  };
  const LinearStepArgs good{.x = view({2, 8}), .weight = view({4, 8}), .y = view({2, 4}, 1)};
  const auto error = [&](auto&& change) {
    LinearStepArgs args = good;
    change(args);
    return error_of([&] { validate(args); });
  };
  EXPECT_EQ(error([](LinearStepArgs&) {}), "no error");
  EXPECT_EQ(error([&](auto& a) {
              a.x = view({2, 9});
            }),
            "linear_step: x has shape (2, 9), expected (2, 8)");
  EXPECT_EQ(error([&](auto& a) { a.x = {}; }),
            "linear_step: x is missing, expected it without a norm");
  EXPECT_EQ(error([&](auto& a) {
              a.norm = LinearStepNorm{.residual = view({2, 8})};
            }),
            "linear_step: norm.new_residual is missing, expected a tensor of shape (2, 8)");
  EXPECT_EQ(error([&](auto& a) {
              a.norm = LinearStepNorm{.residual = view({2, 8}), .new_residual = view({2, 8})};
            }),
            "linear_step: norm.new_residual is norm.residual, expected another tensor");
  EXPECT_EQ(error([&](auto& a) {
              a.gated_norm = LinearStepGatedNorm{.z = view({2, 8}), .ngroups = 3};
            }),
            "linear_step: gated_norm.ngroups is 3, expected a divisor of 8 columns");
  EXPECT_EQ(error([&](auto& a) {
              a.conv = LinearStepConv{.begin = 3, .weight = view({2, 4})};
            }),
            "linear_step: conv.begin is 3, expected 2 channels to end within 4 columns");
}

}  // namespace
}  // namespace adder
