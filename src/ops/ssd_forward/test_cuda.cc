// Values and properties of ssd_forward on a CUDA device, by every way to compute it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/workspace.h"
#include "cuda/timing.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/compute_out/compute_out.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/ssd_forward/test_device.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder {
namespace {

using SsdForwardCuda = test::OnDevice;
using cuda::SsdForwardChoice;
using test::all_choices;
using test::by_every_choice;
using test::described;
using test::DeviceBuffer;
using test::same_bits;
using test::SsdCase;
using test::SsdOnDevice;
using test::SsdOutput;
using test::SsdRunner;
using test::SsdShape;
using test::takes;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr std::int64_t kQ = 64;  // tokens of a chunk

// Many cases by every choice that takes them, judged together: see Pooled.
class Cases {
 public:
  void add(const SsdCase& c, std::initializer_list<std::int64_t> misalignments = {0}) {
    const test::SsdJudge judge(c);
    const SsdShape& s = c.shape;
    for (std::int64_t misalignment : misalignments) {
      for (const SsdForwardChoice& choice : all_choices()) {
        SsdOnDevice on_device(c, misalignment);
        if (!takes(choice, on_device.args)) continue;
        judge.add(on_device.run(choice),
                  fmt::format("batch {} seqlen {} heads {} of {} groups {} dstate {} {} "
                              "misalignment {} {}",
                              s.batch, s.seqlen, s.nheads, s.headdim, s.ngroups, s.dstate,
                              name_of(s.dtype), misalignment, described(choice)),
                  y_, final_states_);
      }
    }
  }

  void expect_right() const {
    EXPECT_TRUE(y_.as_good_as_plain());
    EXPECT_TRUE(final_states_.as_good_as_plain());
  }

 private:
  test::Pooled y_, final_states_;
};

TEST_F(SsdForwardCuda, AsGoodAsPlainInEveryLengthAndDtype) {
  for (DType dtype : kDTypes) {
    Cases cases;
    for (std::int64_t seqlen : {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, kQ - 1, kQ,
                                kQ + 1, 2 * kQ + 3, 4 * kQ}) {
      cases.add(SsdCase({.batch = 2, .seqlen = seqlen, .nheads = 4, .ngroups = 2, .dtype = dtype}));
    }
    cases.expect_right();
  }
}

TEST_F(SsdForwardCuda, AsGoodAsPlainForEveryTailOfHeadAndState) {
  for (DType dtype : kDTypes) {
    for (std::int64_t dstate : {1, 5, 16, 64, 100, 128}) {
      Cases cases;
      for (std::int64_t headdim : {1, 3, 16, 33, 64, 80, 128}) {
        cases.add(SsdCase({.seqlen = kQ + 5, .headdim = headdim, .dstate = dstate, .dtype = dtype}),
                  {0, 1});
      }
      cases.expect_right();
    }
  }
}

TEST_F(SsdForwardCuda, AsGoodAsPlainForLargeHeadsAndStates) {
  for (DType dtype : kDTypes) {
    for (const auto& [headdim, dstate] :
         {std::pair{256, 16}, {255, 64}, {64, 256}, {64, 512}, {16, 511}, {129, 257}}) {
      Cases cases;
      cases.add(SsdCase({.seqlen = kQ + 9, .headdim = headdim, .dstate = dstate, .dtype = dtype}));
      cases.expect_right();
    }
  }
}

TEST_F(SsdForwardCuda, AsGoodAsPlainForEveryNumberOfGroups) {
  for (DType dtype : kDTypes) {
    Cases cases;
    for (std::int64_t ngroups : {1, 2, 8}) {
      for (std::int64_t heads_per_group : {1, 3, 4}) {
        cases.add(SsdCase({.batch = 2,
                           .seqlen = 2 * kQ + 1,
                           .nheads = ngroups * heads_per_group,
                           .ngroups = ngroups,
                           .dstate = 24,
                           .dtype = dtype}));
      }
    }
    cases.expect_right();
  }
}

TEST_F(SsdForwardCuda, ChunkSizeChangesNothing) {
  by_every_choice(test::chunk_size_changes_nothing);
}

TEST_F(SsdForwardCuda, StatesAddUpOverManyChunks_KnownBug1) {
  by_every_choice(test::states_add_up_over_many_chunks);
}

TEST_F(SsdForwardCuda, PrefixSumsCostNoAccuracy) {
  by_every_choice(test::prefix_sums_cost_no_accuracy);
}

TEST_F(SsdForwardCuda, AnySplitResumesFromTheState_KnownBug4) {
  by_every_choice(test::any_split_resumes_from_the_state);
}

TEST_F(SsdForwardCuda, LaterTokensNeverChangeEarlierOutputs) {
  for (const SsdForwardChoice& choice : all_choices()) {
    // Segments begin where the length says, which rounding shows.
    if (choice.segments > 1) continue;
    SCOPED_TRACE(described(choice));
    later_tokens_never_change_earlier_outputs(test::device_runner(choice));
  }
}

TEST_F(SsdForwardCuda, ZeroTimeStepKeepsTheState) {
  by_every_choice(test::zero_time_step_keeps_the_state);
}

TEST_F(SsdForwardCuda, IsLinearInX) { by_every_choice(test::is_linear_in_x); }

TEST_F(SsdForwardCuda, GroupsEqualRepeatedBAndC) {
  by_every_choice(test::groups_equal_repeated_B_and_C);
}

TEST_F(SsdForwardCuda, ARowEqualsTheRowAlone_KnownBug13) {
  by_every_choice(test::a_row_equals_the_row_alone);
}

TEST_F(SsdForwardCuda, ExtremeDecaysStayFinite_KnownBug8) {
  by_every_choice(test::extreme_decays_stay_finite);
}

TEST_F(SsdForwardCuda, MixedExtremeStepsKeepTheirOrder_KnownBug8) {
  by_every_choice(test::mixed_extreme_steps_keep_their_order);
}

TEST_F(SsdForwardCuda, AllEqualInputsStayFinite_KnownBug8) {
  by_every_choice(test::all_equal_inputs_stay_finite);
}

TEST_F(SsdForwardCuda, PrefillThenStepsEqualsPrefill_KnownBug3) {
  constexpr std::int64_t kSeqlen = kQ + 11;
  for (DType dtype : kDTypes) {
    const SsdCase whole(
        {.batch = 2, .seqlen = kSeqlen, .nheads = 4, .headdim = 20, .ngroups = 2, .dtype = dtype});
    const test::SsdJudge judge(whole);
    for (std::int64_t n : {std::int64_t{0}, std::int64_t{1}, kQ - 1, kQ, kQ + 1, kSeqlen - 1}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << n << " tokens of prefill");
      SsdCase part = whole;
      part.narrow(0, n);
      const SsdOutput prefill = SsdOnDevice(part).run();
      SsdOnDevice steps(whole);
      const DeviceBuffer state(DType::f32, prefill.final_states);
      for (std::int64_t t = n; t < kSeqlen; ++t) {
        const auto at = [&](const auto& view) { return test::token_of(view, t); };
        const SsdForwardArgs& a = steps.args;
        cuda::ssd_step({.x = at(a.x),
                        .dt = at(a.dt),
                        .A = a.A,
                        .B = at(a.B),
                        .C = at(a.C),
                        .D = a.D,
                        .z = at(a.z),
                        .dt_bias = a.dt_bias,
                        .dt_softplus = true,
                        .state = state.view({2, 4, 20, 16}),
                        .y = at(a.y)},
                       nullptr);
      }
      SsdOutput got = steps.result();
      got.final_states = state.values();
      for (std::int64_t b = 0; b < 2; ++b) {
        std::copy_n(prefill.y.begin() + b * n * 80, n * 80, got.y.begin() + b * kSeqlen * 80);
      }
      judge.expect_right(got);
    }
  }
}

TEST_F(SsdForwardCuda, RunsAndReplaysAgreeBitForBit) {
  for (DType dtype : kDTypes) {
    const SsdCase c({.batch = 2,
                     .seqlen = 5 * kQ,
                     .nheads = 6,
                     .headdim = 64,
                     .ngroups = 2,
                     .dstate = 64,
                     .dtype = dtype});
    std::vector<std::optional<SsdForwardChoice>> choices{std::nullopt};
    for (const SsdForwardChoice& choice : all_choices()) choices.emplace_back(choice);
    for (const auto& choice : choices) {
      SCOPED_TRACE(choice ? described(*choice) : "no choice");
      SsdOnDevice call(c);
      if (choice && !takes(*choice, call.args)) continue;
      const SsdOutput expected = call.run(choice);
      call.poison();
      const SsdOutput again = call.run(choice);
      EXPECT_TRUE(same_bits(again.y, expected.y));
      EXPECT_TRUE(same_bits(again.final_states, expected.final_states));
      const cuda::OwnedStream stream;
      const auto workspace = call.workspace(choice);
      const cuda::Graph graph(stream, [&] { call.call(workspace, choice, stream); });
      for (int replay = 0; replay < 2; ++replay) {
        call.poison();
        graph.launch(stream);
        const SsdOutput captured = call.result(stream);
        EXPECT_TRUE(same_bits(captured.y, expected.y));
        EXPECT_TRUE(same_bits(captured.final_states, expected.final_states));
      }
    }
  }
}

TEST_F(SsdForwardCuda, WindowsChangeNothingBitForBit) {
  const std::vector<std::int32_t> offsets{0, 130, 130, 131, 400, 520};
  for (DType dtype : kDTypes) {
    for (bool packed : {false, true}) {
      SsdCase c({.batch = packed ? 1 : 3,
                 .seqlen = 520,
                 .nheads = 2,
                 .headdim = 20,
                 .dtype = dtype,
                 .nsequences = packed ? 5 : 0});
      if (packed) c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {6});
      const SsdOutput expected = SsdOnDevice(c).run(SsdForwardChoice{.window_chunks = 1000});
      for (std::int64_t window : {1, 2, 3, 7, 10}) {
        const SsdOutput got = SsdOnDevice(c).run(SsdForwardChoice{.window_chunks = window});
        EXPECT_TRUE(same_bits(got.y, expected.y)) << name_of(dtype) << " window " << window;
        EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
      }
    }
  }
}

TEST_F(SsdForwardCuda, GeneralEqualsItsThreeStepsBitForBit) {
  for (DType dtype : kDTypes) {
    const SsdCase c({.batch = 2,
                     .seqlen = 2 * kQ + 6,
                     .nheads = 4,
                     .headdim = 20,
                     .ngroups = 2,
                     .dstate = 24,
                     .dtype = dtype});
    SsdOnDevice call(c);
    const SsdOutput whole = call.run(SsdForwardChoice{.window_chunks = 2});
    call.poison();
    const ChunkPlanArgs plan_args{2, 2 * kQ + 6, kQ, {}, {}};
    const auto plan_memory = cuda::allocate(cuda::chunk_plan_bytes(plan_args));
    const ChunkPlan plan = cuda::make_chunk_plan(
        plan_args, {plan_memory.get(), cuda::chunk_plan_bytes(plan_args)}, nullptr);
    const DeviceBuffer dt(DType::f32, 4 * 6 * kQ);
    const DeviceBuffer sums(DType::f32, 2 * 4 * 6 * kQ);
    const DeviceBuffer states(DType::f32, 6 * 4 * 24 * 32);
    cuda::chunk_cumsum({.dt_raw = call.args.dt,
                        .A = call.args.A,
                        .dt_bias = call.args.dt_bias,
                        .dt_options = {.softplus = true},
                        .plan = plan,
                        .dt = dt.view({4, 6, kQ}),
                        .dA_cumsum = sums.view({4, 6, 2, kQ})},
                       nullptr);
    cuda::fwd_pass_state({.x = call.args.x,
                          .B = call.args.B,
                          .dt = dt.view({4, 6, kQ}),
                          .dA_cumsum = sums.view({4, 6, 2, kQ}),
                          .initial_states = call.args.initial_states,
                          .plan = plan,
                          .states = states.view({6, 4, 24, 32}),
                          .final_states = call.args.final_states},
                         nullptr);
    cuda::compute_out({.x = call.args.x,
                       .B = call.args.B,
                       .C = call.args.C,
                       .dt = dt.view({4, 6, kQ}),
                       .dA_cumsum = sums.view({4, 6, 2, kQ}),
                       .states = states.view({6, 4, 24, 32}),
                       .D = call.args.D,
                       .z = call.args.z,
                       .plan = plan,
                       .y = call.args.y},
                      nullptr);
    const SsdOutput steps = call.result();
    EXPECT_TRUE(same_bits(steps.y, whole.y)) << name_of(dtype);
    EXPECT_TRUE(same_bits(steps.final_states, whole.final_states)) << name_of(dtype);
  }
}

TEST_F(SsdForwardCuda, AgreesWithTheCpu) {
  ThreadPool pool(2);
  for (DType dtype : kDTypes) {
    const double tolerance = dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 4e-3 : 3e-2;
    const SsdCase c({.batch = 2,
                     .seqlen = 3 * kQ + 7,
                     .nheads = 4,
                     .headdim = 64,
                     .ngroups = 2,
                     .dstate = 64,
                     .dtype = dtype});
    const SsdOutput expected = c.run(pool);
    for (const SsdForwardChoice& choice : all_choices()) {
      SsdOnDevice call(c);
      if (!takes(choice, call.args)) continue;
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << described(choice));
      const SsdOutput got = call.run(choice);
      EXPECT_TRUE(test::all_close(got.y, test::to_double(expected.y), tolerance));
      EXPECT_TRUE(
          test::all_close(got.final_states, test::to_double(expected.final_states), tolerance));
    }
  }
}

// Three tokens in memory of the device, each more than 2^31 elements after the last, in one chunk
// and as sequences of their own.
TEST_F(SsdForwardCuda, OffsetsBeyond32Bits_KnownBug12) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kRow = 2 * 16;  // elements of a token
  std::shared_ptr<std::byte> memory;
  try {
    memory = cuda::allocate(static_cast<std::size_t>((kTokens - 1) * kFar + 2 * kRow) * 2);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const std::vector<std::int32_t> offsets{0, 1, 2, 3};
  for (bool packed : {false, true}) {
    SsdCase c({.seqlen = kTokens, .dtype = DType::bf16, .nsequences = packed ? kTokens : 1});
    c.args.z = {};
    if (packed) c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {4});
    for (const SsdForwardChoice& choice : all_choices()) {
      SsdOnDevice near(c);
      SsdOnDevice far(c);
      TensorView x(memory.get(), DType::bf16, {1, kTokens, 2, 16}, near.args.x.device);
      x.strides[1] = kFar;
      TensorView y = x;
      y.data = memory.get() + kRow * 2;
      far.args.x = x;
      far.args.y = y;
      if (!takes(choice, far.args)) continue;
      SCOPED_TRACE(described(choice));
      for (std::int64_t t = 0; t < kTokens; ++t) {
        cuda::copy_to_device(x.narrow(1, t, 1).data, c.x.view.narrow(1, t, 1).data, kRow * 2,
                             nullptr);
      }
      const SsdOutput expected = near.run(choice);
      far.call(far.workspace(choice), choice, nullptr);
      for (std::int64_t t = 0; t < kTokens; ++t) {
        std::vector<std::byte> got(kRow * 2);
        cuda::copy_to_host(got.data(), y.narrow(1, t, 1).data, got.size(), nullptr);
        EXPECT_TRUE(same_bits(
            test::decode(got, DType::bf16),
            std::span(expected.y)
                .subspan(static_cast<std::size_t>(t * kRow), static_cast<std::size_t>(kRow))))
            << "token " << t << (packed ? " packed" : "");
      }
    }
  }
}

}  // namespace
}  // namespace adder
