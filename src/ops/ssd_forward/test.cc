// Values of ssd_forward, and the properties of test_properties.h that concern plain batches.
// Packing, padding, options and errors are in test_sequences.cc and test_options.cc.

#include <gtest/gtest.h>

#include <cstring>

#include "core/cpu_tier.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/compute_out/compute_out.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/ssd_forward/test_cpu.h"
#include "ops/ssd_step/ssd_step.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::cpu_runner;
using test::in_every_tier;
using test::same_bits;
using test::SsdCase;
using test::SsdOutput;
using test::SsdShape;

constexpr std::int64_t kQ = 32;  // the chunk_size of SsdCase

TEST(SsdForward, AsGoodAsTheRecurrenceInEveryTierLengthAndDtype) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t seqlen : {std::int64_t{0}, std::int64_t{1}, kQ - 1, kQ, kQ + 1, 2 * kQ + 3}) {
      for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(tier) << " seqlen " << seqlen << " " << name_of(dtype));
        const SsdCase c({.batch = 2, .seqlen = seqlen, .nheads = 4, .ngroups = 2, .dtype = dtype});
        c.expect_right(c.run(pool));
      }
    }
  }
}

TEST(SsdForward, AsGoodAsTheRecurrenceForEveryTailOfHeadAndState) {
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t headdim : {1, 3, 5, 16, 64, 80, 100}) {
      for (std::int64_t dstate : {1, 3, 5, 16, 80, 100}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(tier) << " headdim " << headdim << " dstate " << dstate);
        const SsdCase c(
            {.batch = 2, .seqlen = kQ + 5, .nheads = 4, .headdim = headdim, .dstate = dstate});
        c.expect_right(c.run(pool));
      }
    }
  }
}

TEST(SsdForward, ChunkSizeChangesNothing) { chunk_size_changes_nothing(cpu_runner(1)); }

TEST(SsdForward, StatesAddUpOverManyChunks_KnownBug1) {
  states_add_up_over_many_chunks(cpu_runner(1));
}

TEST(SsdForward, PrefixSumsCostNoAccuracy) { prefix_sums_cost_no_accuracy(cpu_runner(1)); }

TEST(SsdForward, AnySplitResumesFromTheState_KnownBug4) {
  any_split_resumes_from_the_state(cpu_runner(1));
}

TEST(SsdForward, LaterTokensNeverChangeEarlierOutputs) {
  in_every_tier([] { later_tokens_never_change_earlier_outputs(cpu_runner(1)); });
}

TEST(SsdForward, ZeroTimeStepKeepsTheState) { zero_time_step_keeps_the_state(cpu_runner(1)); }

TEST(SsdForward, IsLinearInX) { is_linear_in_x(cpu_runner(1)); }

TEST(SsdForward, GroupsEqualRepeatedBAndC) { groups_equal_repeated_B_and_C(cpu_runner(1)); }

TEST(SsdForward, ARowEqualsTheRowAlone_KnownBug13) { a_row_equals_the_row_alone(cpu_runner(2)); }

TEST(SsdForward, ExtremeDecaysStayFinite_KnownBug8) {
  in_every_tier([] { extreme_decays_stay_finite(cpu_runner(1)); });
}

TEST(SsdForward, MixedExtremeStepsKeepTheirOrder_KnownBug8) {
  mixed_extreme_steps_keep_their_order(cpu_runner(1));
}

TEST(SsdForward, AllEqualInputsStayFinite_KnownBug8) {
  all_equal_inputs_stay_finite(cpu_runner(1));
}

TEST(SsdForward, PrefillThenStepsEqualsPrefill_KnownBug3) {
  ThreadPool pool(2);
  const SsdShape shape{.batch = 2, .seqlen = 75, .nheads = 4, .headdim = 20, .ngroups = 2};
  const SsdCase whole(shape);
  for (std::int64_t n : {0, 1, 31, 32, 33, 70}) {
    SCOPED_TRACE(n);
    SsdCase part = whole;
    part.narrow(0, n);
    SsdOutput got = part.run(pool);
    std::vector<float> y(static_cast<std::size_t>(whole.args.x.numel()));
    const auto rows = TensorView::of(y.data(), {2, 75, 4, 20});
    std::size_t next = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      std::copy_n(got.y.data() + next, n * 80, rows[b].as<float>());
      next += static_cast<std::size_t>(n * 80);
    }
    for (std::int64_t t = n; t < 75; ++t) {
      const auto at = [&](const auto& view) { return test::token_of(view, t); };
      const SsdForwardArgs& a = whole.args;
      cpu::ssd_step({.x = at(a.x),
                     .dt = at(a.dt),
                     .A = a.A,
                     .B = at(a.B),
                     .C = at(a.C),
                     .D = a.D,
                     .z = at(a.z),
                     .dt_bias = a.dt_bias,
                     .dt_softplus = true,
                     .state = TensorView::of(got.final_states.data(), {2, 4, 20, 16}),
                     .y = at(rows)},
                    pool);
    }
    got.y = y;
    whole.expect_right(got);
  }
}

TEST(SsdForward, RunsAndThreadCountsAgreeBitForBit) {
  const SsdCase c({.batch = 2, .seqlen = 100, .nheads = 6, .ngroups = 2, .dstate = 20});
  ThreadPool one(1);
  const auto first = c.run(one);
  for (int nthreads : {1, 2, 3, 7}) {
    SCOPED_TRACE(nthreads);
    ThreadPool pool(nthreads);
    const auto again = c.run(pool);
    EXPECT_TRUE(same_bits(again.y, first.y));
    EXPECT_TRUE(same_bits(again.final_states, first.final_states));
  }
}

TEST(SsdForward, MoreHeadsThanFitInOneBlock) {
  const SsdCase c({.seqlen = kQ + 3, .nheads = 20, .headdim = 64, .dstate = 128});
  for (int nthreads : {1, 2}) {
    ThreadPool pool(nthreads);
    c.expect_right(c.run(pool));
  }
}

TEST(SsdForward, EqualsItsThreeStepsBitForBit) {
  ThreadPool pool(2);
  for (DType dtype : {DType::f32, DType::bf16}) {
    const SsdCase c({.batch = 2,
                     .seqlen = 70,
                     .nheads = 4,
                     .headdim = 20,
                     .ngroups = 2,
                     .dstate = 24,
                     .dtype = dtype});
    const auto fused = c.run(pool);
    const ChunkPlanArgs plan_args{2, 70, kQ, {}, {}};
    const ChunkPlanSize size = chunk_plan_size(plan_args);
    std::vector<Chunk> chunks(static_cast<std::size_t>(size.nchunks));
    std::vector<std::int64_t> first_chunk(static_cast<std::size_t>(size.nsequences) + 1);
    const ChunkPlan plan = make_chunk_plan(plan_args, chunks.data(), first_chunk.data());
    const Tensor dt = Tensor::empty(DType::f32, {4, size.nchunks, kQ});
    const Tensor dA_cumsum = Tensor::empty(DType::f32, {4, size.nchunks, 2, kQ});
    const Tensor states = Tensor::empty(DType::f32, {size.nchunks, 4, 24, 32});
    const Tensor final_states = Tensor::empty(DType::f32, {2, 4, 20, 24});
    const Tensor y = Tensor::empty(dtype, {2, 70, 4, 20});
    cpu::chunk_cumsum({.dt_raw = c.args.dt,
                       .A = c.args.A,
                       .dt_bias = c.args.dt_bias,
                       .dt_options = {.softplus = true},
                       .plan = plan,
                       .dt = dt.view,
                       .dA_cumsum = dA_cumsum.view},
                      pool);
    const FwdPassStateArgs pass{.x = c.args.x,
                                .B = c.args.B,
                                .dt = dt.view,
                                .dA_cumsum = dA_cumsum.view,
                                .initial_states = c.args.initial_states,
                                .plan = plan,
                                .states = states.view,
                                .final_states = final_states.view};
    std::vector<std::byte> workspace(cpu::fwd_pass_state_workspace_bytes(pass, pool.nthreads()));
    cpu::fwd_pass_state(pass, workspace, pool);
    const ComputeOutArgs out{.x = c.args.x,
                             .B = c.args.B,
                             .C = c.args.C,
                             .dt = dt.view,
                             .dA_cumsum = dA_cumsum.view,
                             .states = states.view,
                             .D = c.args.D,
                             .z = c.args.z,
                             .plan = plan,
                             .y = y.view};
    workspace.resize(cpu::compute_out_workspace_bytes(out, pool.nthreads()));
    cpu::compute_out(out, workspace, pool);
    EXPECT_TRUE(same_bits(test::to_floats(y.view), fused.y));
    EXPECT_TRUE(same_bits(final_states.span<float>(), fused.final_states));
  }
}

TEST(SsdForward, OffsetsBeyond32Bits_KnownBug12) {
  // Three tokens that lie 2^31 elements apart, in x and y.
  ThreadPool pool(1);
  constexpr std::int64_t kFar = test::kBeyond32Bits;
  const test::Sparse<float> x(2 * kFar + 64);
  const test::Sparse<float> y(2 * kFar + 64);
  if (!x.ok() || !y.ok()) GTEST_SKIP() << "the system refuses the address space";
  SsdCase c({.seqlen = 3, .nheads = 2, .headdim = 4});
  c.args.z = {};
  for (std::int64_t t = 0; t < 3; ++t) {
    std::memcpy(x.data() + t * kFar, c.x.as<float>() + t * 8, 8 * sizeof(float));
  }
  for (std::int64_t chunk_size : {1, 32}) {  // between chunks and inside one
    SCOPED_TRACE(chunk_size);
    c.args.chunk_size = chunk_size;
    const auto near = c.run(pool);
    SsdForwardArgs call = c.args;
    call.x = ConstTensorView::of(x.data(), {1, 3, 2, 4});
    call.x.strides[1] = kFar;
    call.y = TensorView::of(y.data(), {1, 3, 2, 4});
    call.y.strides[1] = kFar;
    std::vector<std::byte> workspace(cpu::ssd_forward_workspace_bytes(call, 1));
    cpu::ssd_forward(call, workspace, pool);
    for (std::int64_t t = 0; t < 3; ++t) {
      EXPECT_TRUE(same_bits({y.data() + t * kFar, 8},
                            std::span(near.y).subspan(static_cast<std::size_t>(t) * 8, 8)));
    }
  }
}

}  // namespace
}  // namespace adder
