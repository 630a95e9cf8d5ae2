// Optional arguments, layouts and errors of ssd_forward.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "adder/error.h"
#include "ops/ssd_forward/test_cpu.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using test::cpu_runner;
using test::same_bits;
using test::SsdCase;

TEST(SsdForward, TakesEveryOption) { takes_every_option(cpu_runner(1)); }

TEST(SsdForward, LimitsTheTimeStep_KnownBug2) { limits_the_time_step(cpu_runner(1)); }

TEST(SsdForward, ReadsSlicesOfTheConvolutionsOutput) {
  reads_slices_of_the_convolutions_output(cpu_runner(2));
}

TEST(SsdForward, NaNShowsInsteadOfBeingClampedAway) {
  nan_shows_instead_of_being_clamped_away(cpu_runner(1));
}

TEST(SsdForward, AllowingTf32ChangesNothing) {
  ThreadPool pool(1);
  SsdCase c({.seqlen = 75});
  const auto expected = c.run(pool);
  c.args.allow_tf32 = true;
  const auto got = c.run(pool);
  EXPECT_TRUE(same_bits(got.y, expected.y));
  EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
}

TEST(SsdForward, OutputMayBeTheInputOrTheGateAndStatesMayBeUpdatedInPlace) {
  ThreadPool pool(2);
  for (bool over_x : {false, true}) {
    const SsdCase c({.batch = 2, .seqlen = 75, .nheads = 2, .headdim = 19});
    const auto apart = c.run(pool);
    SsdForwardArgs call = c.args;
    call.y = over_x ? c.x.view : c.z.view;
    call.final_states = c.initial_states.view;
    std::vector<std::byte> workspace(cpu::ssd_forward_workspace_bytes(call, pool.nthreads()));
    cpu::ssd_forward(call, workspace, pool);
    EXPECT_TRUE(same_bits(over_x ? c.x.span<float>() : c.z.span<float>(), apart.y));
    EXPECT_TRUE(same_bits(c.initial_states.span<float>(), apart.final_states));
  }
}

TEST(SsdForward, FinalStatesMayBeAbsentAndRowsApart) {
  ThreadPool pool(1);
  const SsdCase c({.batch = 2, .seqlen = 45, .nheads = 2});
  const auto packed = c.run(pool);
  std::vector<float> y(2 * 45 * 2 * 20, 7.0F);
  SsdForwardArgs call = c.args;
  call.y = TensorView::of(y.data(), {2, 45, 2, 20}).narrow(3, 0, 16);
  std::vector<std::byte> workspace(cpu::ssd_forward_workspace_bytes(call, 1));
  cpu::ssd_forward(call, workspace, pool);
  for (std::size_t row = 0; row < 180; ++row) {
    EXPECT_TRUE(
        same_bits(std::span(y).subspan(row * 20, 16), std::span(packed.y).subspan(row * 16, 16)));
    EXPECT_TRUE(same_bits(std::span(y).subspan(row * 20 + 16, 4), std::vector<float>(4, 7.0F)));
  }
}

class SsdForwardErrors : public ::testing::Test {
 protected:
  SsdForwardErrors() {
    good_.y = TensorView::of(y_.data(), {2, 45, 4, 16});
    good_.final_states = TensorView::of(states_.data(), {2, 4, 16, 16});
    good_.dt_bias = case_.dt_bias.view;
  }

  template <typename Change>
  std::string error_of(Change&& change) {
    SsdForwardArgs args = good_;
    change(args);
    return test::error_of([&] { cpu::ssd_forward(args, workspace_, pool_); });
  }

  ThreadPool pool_{1};
  SsdCase case_{{.batch = 2, .seqlen = 45, .nheads = 4, .ngroups = 2}};
  std::vector<float> y_ = std::vector<float>(2 * 45 * 64);
  std::vector<float> states_ = std::vector<float>(2 * 4 * 256);
  std::vector<std::byte> workspace_ = std::vector<std::byte>(1 << 20);
  SsdForwardArgs good_ = case_.args;
};

TEST_F(SsdForwardErrors, NameTheArgument) {
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.x = {}; }),
            "ssd_forward: x is missing, expected a tensor of shape (any, any, any, any)");
  EXPECT_EQ(error_of([](auto& a) { a.B = a.B.narrow(2, 0, 0); }),
            "ssd_forward: B has 0 groups, expected a divisor of the 4 heads");
  EXPECT_EQ(error_of([](auto& a) { a.C = a.C.narrow(1, 0, 44); }),
            "ssd_forward: C has shape (2, 44, 2, 16), expected (2, 45, 2, 16)");
  EXPECT_EQ(error_of([](auto& a) { a.dt_max = -1; }),
            "ssd_forward: the limits of dt are 0 and -1, expected 0 <= dt_min <= dt_max");
  EXPECT_EQ(error_of([](auto& a) { a.chunk_size = 0; }),
            "ssd_forward: chunk_size is 0, expected at least 1");
  const std::vector<float> infinite{-1, -INFINITY, -1, -1};
  EXPECT_EQ(error_of([&](auto& a) { a.A = ConstTensorView::of(infinite.data(), {4}); }),
            "ssd_forward: A is -inf for head 1, expected a finite negative number");
  const std::vector<std::int32_t> offsets{0, 45};
  EXPECT_EQ(error_of([&](auto& a) { a.cu_seqlens = ConstTensorView::of(offsets.data(), {2}); }),
            "ssd_forward: batch is 2, expected 1 with cu_seqlens");
  EXPECT_THROW(cpu::ssd_forward_workspace_bytes(good_, 0), Error);
  const std::size_t needed = cpu::ssd_forward_workspace_bytes(good_, 1);
  workspace_.resize(needed - 1);
  EXPECT_EQ(error_of([](auto&) {}), "ssd_forward: workspace has " + std::to_string(needed - 1) +
                                        " bytes, expected at least " + std::to_string(needed));
}

TEST_F(SsdForwardErrors, EveryArgumentIsChecked) {
  const auto rejects = [&](auto&& change) { return error_of(change) != "no error"; };
  EXPECT_TRUE(rejects([](auto& a) { a.x.dtype = DType::i32; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.data = nullptr; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x = a.x.narrow(3, 0, 0); }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.device.type = DeviceType::cuda; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt = a.dt.narrow(2, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt.dtype = DType::bf16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.A = a.A.narrow(0, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.B.dtype = DType::f16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.B = a.B.narrow(3, 0, 0); }));
  EXPECT_TRUE(rejects([](auto& a) { a.C.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.D = a.D.narrow(1, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.D.dtype = DType::f16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.z = a.z.narrow(0, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_bias = a.dt_bias.narrow(0, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_min = std::nanf(""); }));
  EXPECT_TRUE(rejects([](auto& a) { a.initial_states = a.initial_states.narrow(0, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.y = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.y.dtype = DType::bf16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.y.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.final_states = a.final_states.narrow(2, 0, 8); }));
  EXPECT_TRUE(rejects([](auto& a) { a.final_states.strides[3] = 2; }));
  const std::vector<std::int32_t> seq_idx(90);
  EXPECT_TRUE(rejects([&](auto& a) { a.seq_idx = ConstTensorView::of(seq_idx.data(), {45, 2}); }));
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{1, 45}, {0, 44}, {0, 20, 10, 45}}) {
    EXPECT_TRUE(rejects([&](auto& a) {
      for (ConstTensorView* view : {&a.x, &a.dt, &a.B, &a.C, &a.z}) *view = view->narrow(0, 0, 1);
      a.y = a.y.narrow(0, 0, 1);
      a.initial_states = {};
      a.final_states = {};
      a.cu_seqlens =
          ConstTensorView::of(offsets.data(), {static_cast<std::int64_t>(offsets.size())});
    }));
  }
}

}  // namespace
}  // namespace adder
