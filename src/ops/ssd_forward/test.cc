// Values and properties of ssd_forward on plain batches. Packing, padding, options and errors are
// in test_sequences.cc and test_options.cc.

#include <gtest/gtest.h>

#include <cstring>

#include "core/cpu_tier.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/compute_out/compute_out.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/ssd_forward/test_case.h"
#include "ops/ssd_step/ssd_step.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

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

TEST(SsdForward, ChunkSizeChangesNothing) {
  ThreadPool pool(1);
  SsdCase c({.seqlen = 131, .nheads = 3, .headdim = 20, .dstate = 24});
  for (std::int64_t chunk_size : {1, 2, 7, 16, 31, 63, 64, 65, 100, 256, 100000}) {
    SCOPED_TRACE(chunk_size);
    c.args.chunk_size = chunk_size;
    c.expect_right(c.run(pool));
  }
}

TEST(SsdForward, StatesAddUpOverManyChunks_KnownBug1) {
  ThreadPool pool(1);
  for (std::int64_t seqlen : {2 * kQ + 1, 3 * kQ, 7 * kQ + 9}) {
    // Slow decay, so that the first chunk still matters in the last.
    SsdCase c({.seqlen = seqlen, .nheads = 3});
    for (float& a : c.A.span<float>()) a *= 0.01F;
    c.expect_right(c.run(pool));
  }
}

// A float32 prefix sum over a chunk of 64 reaches -128 here; differences of neighbors would keep 17
// bits of it.
TEST(SsdForward, PrefixSumsCostNoAccuracy) {
  ThreadPool pool(1);
  SsdCase c({.seqlen = 256, .nheads = 2, .headdim = 32, .dstate = 32});
  c.args.chunk_size = 64;
  c.args.dt_softplus = false;
  c.args.dt_bias = {};
  c.args.D = {};
  test::Random random(7);
  for (float& v : c.dt.span<float>()) v = static_cast<float>(random.uniform(0.5, 1.5));
  for (float& a : c.A.span<float>()) a = -2;
  c.expect_right(c.run(pool));
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
      const auto at = [&](const auto& view) {  // drops the dimension of tokens
        auto token = view.narrow(1, t, 1);
        for (int d = 1; d + 1 < token.rank; ++d) {
          token.shape[d] = token.shape[d + 1];
          token.strides[d] = token.strides[d + 1];
        }
        --token.rank;
        return token;
      };
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

TEST(SsdForward, AnySplitResumesFromTheState_KnownBug4) {
  ThreadPool pool(1);
  const SsdCase whole({.seqlen = 2 * kQ + 3, .nheads = 2, .headdim = 12, .dstate = 8});
  for (std::int64_t n = 0; n <= 2 * kQ + 3; ++n) {
    SCOPED_TRACE(n);
    SsdCase first = whole;
    first.narrow(0, n);
    const SsdOutput head = first.run(pool);
    SsdCase second = whole;
    second.narrow(n, 2 * kQ + 3 - n);
    second.args.initial_states = ConstTensorView::of(head.final_states.data(), {1, 2, 12, 8});
    SsdOutput tail = second.run(pool);
    tail.y.insert(tail.y.begin(), head.y.begin(), head.y.end());
    whole.expect_right(tail);
  }
}

TEST(SsdForward, LaterTokensNeverChangeEarlierOutputs) {
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (float garbage : {1e30F, INFINITY, std::nanf("")}) {
      const SsdCase whole({.seqlen = 2 * kQ + 3, .nheads = 2});
      const auto before = whole.run(pool).y;
      for (std::int64_t t : {std::int64_t{1}, std::int64_t{5}, kQ - 1, kQ, kQ + 8, 2 * kQ + 2}) {
        SCOPED_TRACE(::testing::Message() << name_of(tier) << " token " << t << " " << garbage);
        SsdCase changed({.seqlen = 2 * kQ + 3, .nheads = 2});
        const auto spoil = [&](const Tensor& tensor) {
          const std::int64_t width = tensor.view.stride(1);
          for (std::int64_t i = t * width; i < tensor.view.numel(); ++i) {
            tensor.as<float>()[i] = garbage;
          }
        };
        spoil(changed.x);
        spoil(changed.z);
        spoil(changed.B);
        spoil(changed.C);
        spoil(changed.dt);
        const auto size = static_cast<std::size_t>(t * 2 * 16);
        const auto after = changed.run(pool).y;
        EXPECT_TRUE(same_bits(std::span(after).first(size), std::span(before).first(size)));
        // Nor does their absence.
        SsdCase shorter = whole;
        shorter.narrow(0, t);
        EXPECT_TRUE(same_bits(shorter.run(pool).y, std::span(before).first(size)));
      }
    }
  }
}

TEST(SsdForward, ZeroTimeStepKeepsTheState) {
  ThreadPool pool(1);
  SsdCase c({.batch = 2, .seqlen = 2 * kQ + 3});
  c.args.dt_softplus = false;
  c.args.dt_bias = {};
  for (float& v : c.dt.span<float>()) v = 0;
  EXPECT_TRUE(same_bits(c.run(pool).final_states, c.initial_states.span<float>()));
}

TEST(SsdForward, IsLinearInX) {
  ThreadPool pool(1);
  SsdCase c({.seqlen = kQ + 7});
  c.args.initial_states = {};
  const auto once = c.run(pool);
  for (float& v : c.x.span<float>()) v *= 4;
  auto four = c.run(pool);
  for (float& v : four.y) v /= 4;
  for (float& v : four.final_states) v /= 4;
  EXPECT_TRUE(same_bits(four.y, once.y));
  EXPECT_TRUE(same_bits(four.final_states, once.final_states));
}

TEST(SsdForward, GroupsEqualRepeatedBAndC) {
  ThreadPool pool(1);
  SsdCase c({.seqlen = kQ + 7, .nheads = 6, .ngroups = 2, .dstate = 24});
  const auto grouped = c.run(pool);
  const auto repeat = [](const Tensor& groups) {
    Tensor heads = Tensor::empty(DType::f32, {1, kQ + 7, 6, 24});
    for (std::int64_t t = 0; t < kQ + 7; ++t) {
      for (std::int64_t h = 0; h < 6; ++h) {
        std::memcpy(heads.as<float>() + (t * 6 + h) * 24, groups.as<float>() + (t * 2 + h / 3) * 24,
                    24 * sizeof(float));
      }
    }
    return heads;
  };
  const Tensor B = repeat(c.B);
  const Tensor C = repeat(c.C);
  c.args.B = B.view;
  c.args.C = C.view;
  const auto repeated = c.run(pool);
  EXPECT_TRUE(same_bits(repeated.y, grouped.y));
  EXPECT_TRUE(same_bits(repeated.final_states, grouped.final_states));
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

TEST(SsdForward, ARowEqualsTheRowAlone_KnownBug13) {
  ThreadPool pool(2);
  const SsdCase all({.batch = 3, .seqlen = 70, .nheads = 2});
  const auto together = all.run(pool);
  for (std::int64_t b = 0; b < 3; ++b) {
    SsdCase row = all;
    row.shape.batch = 1;
    for (ConstTensorView* view : {&row.args.x, &row.args.dt, &row.args.B, &row.args.C, &row.args.z,
                                  &row.args.initial_states}) {
      *view = view->narrow(0, b, 1);
    }
    const auto alone = row.run(pool);
    EXPECT_TRUE(same_bits(
        alone.y, std::span(together.y)
                     .subspan(static_cast<std::size_t>(b) * alone.y.size(), alone.y.size())));
    EXPECT_TRUE(same_bits(alone.final_states,
                          std::span(together.final_states)
                              .subspan(static_cast<std::size_t>(b) * alone.final_states.size(),
                                       alone.final_states.size())));
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

TEST(SsdForward, ExtremeDecaysStayFinite_KnownBug8) {
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (float raw : {-100.0F, 1.0F, 100.0F}) {
        for (float decay : {-1e-6F, -1.0F, -100.0F}) {  // dt · A down to -1e4
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " " << name_of(dtype) << " dt "
                                            << raw << " A " << decay);
          SsdCase c({.seqlen = kQ + 9, .nheads = 1, .dtype = dtype});
          for (float& v : c.dt.span<float>()) v = raw;
          for (float& a : c.A.span<float>()) a = decay;
          c.args.dt_bias = {};
          const auto got = c.run(pool);
          for (float v : got.y) ASSERT_TRUE(std::isfinite(v));
          for (float v : got.final_states) ASSERT_TRUE(std::isfinite(v));
          c.expect_right(got);
        }
      }
    }
  }
}

TEST(SsdForward, MixedExtremeStepsKeepTheirOrder_KnownBug8) {
  // Steps that forget everything between steps that forget nothing.
  ThreadPool pool(1);
  SsdCase c({.seqlen = 2 * kQ, .nheads = 1});
  c.args.dt_softplus = false;
  c.args.dt_bias = {};
  for (std::int64_t t = 0; t < 2 * kQ; ++t) c.dt.as<float>()[t] = t % 5 == 0 ? 1e4F : 1e-3F;
  for (float& a : c.A.span<float>()) a = -1;
  c.expect_right(c.run(pool));
}

TEST(SsdForward, AllEqualInputsStayFinite_KnownBug8) {
  ThreadPool pool(1);
  SsdCase c({.seqlen = 2 * kQ + 3, .dtype = DType::f16});
  for (const Tensor* tensor : {&c.x, &c.z, &c.B, &c.C}) {
    for (f16& v : tensor->span<f16>()) v = to_f16(1);
  }
  for (float& v : c.dt.span<float>()) v = 1;
  c.expect_right(c.run(pool));
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
