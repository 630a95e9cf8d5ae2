#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/selective_scan/test_problem.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/selective_scan_step/test_reference.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/pooled.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::Guarded;
using test::Pooled;
using test::ScanProblem;
using test::scan_step::reference;

// The problem is a scan of one token per batch row.
SelectiveScanStepArgs step_args(const ScanProblem& p, TensorView y, TensorView state) {
  const auto row = [&](const std::vector<float>& v) {
    return ConstTensorView::of(v.data(), {p.batch, p.d_inner});
  };
  const auto group = [&](const std::vector<float>& v) {
    return ConstTensorView::of(v.data(), {p.batch, p.ngroups, p.dstate});
  };
  const auto channel = [&](const std::vector<float>& v) {
    return v.empty() ? ConstTensorView() : ConstTensorView::of(v.data(), {p.d_inner});
  };
  return {.x = row(p.x),
          .dt = row(p.dt),
          .A = ConstTensorView::of(p.A.data(), {p.d_inner, p.dstate}),
          .B = group(p.B),
          .C = group(p.C),
          .D = channel(p.D),
          .z = p.z.empty() ? ConstTensorView() : row(p.z),
          .dt_bias = channel(p.dt_bias),
          .state = state,
          .y = y,
          .dt_softplus = p.dt_softplus};
}

std::vector<float> run(ScanProblem& p, ThreadPool& pool) {
  std::vector<float> y(p.x.size());
  cpu::selective_scan_step(
      step_args(p, TensorView::of(y.data(), {p.batch, p.d_inner}),
                TensorView::of(p.states.data(), {p.batch, p.d_inner, p.dstate})),
      pool);
  return y;
}

// Runs the operation between canaries and adds its results to the pools.
void compare_step(const ScanProblem& p, ThreadPool& pool, Pooled& pooled_y, Pooled& pooled_states,
                  const std::string& label) {
  Guarded<float> y(p.batch * p.d_inner);
  Guarded<float> state(p.batch * p.d_inner * p.dstate);
  state.fill(p.states);
  cpu::selective_scan_step(
      step_args(p, y.view({p.batch, p.d_inner}), state.view({p.batch, p.d_inner, p.dstate})), pool);
  const auto truth = reference<double>(p);
  const auto plain = reference<float>(p);
  pooled_y.add(y.span(), truth.y, plain.y, label);
  pooled_states.add(state.span(), truth.states, plain.states, label);
  EXPECT_TRUE(y.intact()) << label;
  EXPECT_TRUE(state.intact()) << label;
}

TEST(SelectiveScanStep, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    int round = 0;
    for (std::int64_t dstate : {1, 3, 4, 8, 15, 16, 21, 64, 300}) {
      Pooled y;
      Pooled states;
      for (std::int64_t batch : {0, 1, 3}) {
        for (std::int64_t group_size : {1, 3, 15, 16, 17, 63, 64, 65, 200}) {
          ScanProblem p{.batch = batch,
                        .seqlen = 1,
                        .d_inner = group_size * (1 + round % 3),
                        .dstate = dstate,
                        .ngroups = 1 + round % 3,
                        .dt_softplus = round % 4 != 0};
          p.fill(round % 5 != 0);
          ++round;
          compare_step(p, pool, y, states,
                       fmt::format("{} batch {} ngroups {} of {} dstate {} softplus {} options {}",
                                   name_of(tier), batch, p.ngroups, group_size, dstate,
                                   p.dt_softplus, !p.D.empty()));
        }
      }
      EXPECT_TRUE(y.as_good_as_plain());
      EXPECT_TRUE(states.as_good_as_plain());
    }
  }
}

// Known bugs 3 and 4. The states agree bit for bit; y is summed in another order.
TEST(SelectiveScanStep, AScanThenStepsEqualsOneScan) {
  constexpr std::int64_t kTokens = 24;
  constexpr std::int64_t kInner = 90;
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t dstate : {5, 16, 40}) {
      const ScanProblem whole =
          ScanProblem{.seqlen = kTokens, .d_inner = kInner, .dstate = dstate, .ngroups = 2}.fill();
      ScanProblem pass = whole;
      pass.run(pool);
      for (std::int64_t prefill : {0, 1, 7, 23}) {
        ScanProblem head = whole.part(0, prefill, whole.states);
        std::vector<float> y = head.run(pool);
        std::vector<float> state = head.states;
        for (std::int64_t t = prefill; t < kTokens; ++t) {
          ScanProblem token = whole.part(t, t + 1, state);
          const auto y_t = run(token, pool);
          y.insert(y.end(), y_t.begin(), y_t.end());
          state = token.states;
        }
        EXPECT_TRUE(test::same_bits(state, pass.states))
            << name_of(tier) << " dstate " << dstate << " prefill " << prefill;
        EXPECT_TRUE(
            test::as_good_as_plain(y, whole.reference<double>().y, whole.reference<float>().y));
      }
    }
  }
}

TEST(SelectiveScanStep, InterleavedSequencesDoNotMix) {  // known bug 13
  constexpr std::int64_t kSequences = 5;
  constexpr std::int64_t kInner = 130;
  ThreadPool pool(3);
  ScanProblem together = ScanProblem{.batch = kSequences, .seqlen = 1, .d_inner = kInner}.fill();
  std::vector<ScanProblem> alone;
  for (std::int64_t s = 0; s < kSequences; ++s) {
    alone.push_back(together.part(s, s + 1, together.state_of(s)));
  }
  test::Random random(1);
  for (int step = 0; step < 6; ++step) {
    together.x = random.normals(kSequences * kInner);
    const auto y = run(together, pool);
    for (std::int64_t s = 0; s < kSequences; ++s) {
      ScanProblem& one = alone[static_cast<std::size_t>(s)];
      one.x.assign(together.x.begin() + s * kInner, together.x.begin() + (s + 1) * kInner);
      EXPECT_TRUE(test::same_bits(
          run(one, pool), std::span(y).subspan(static_cast<std::size_t>(s * kInner), kInner)));
      EXPECT_TRUE(test::same_bits(one.states, together.state_of(s)));
    }
  }
}

TEST(SelectiveScanStep, ThreadsChangeNothing) {
  const ScanProblem start = ScanProblem{.batch = 2, .seqlen = 1, .d_inner = 1500}.fill();
  ScanProblem one = start;
  ThreadPool single(1);
  const auto expected = run(one, single);
  for (int nthreads : {2, 3, 8, 33}) {
    ThreadPool pool(nthreads);
    ScanProblem many = start;
    EXPECT_TRUE(test::same_bits(run(many, pool), expected)) << nthreads << " threads";
    EXPECT_TRUE(test::same_bits(many.states, one.states)) << nthreads << " threads";
  }
}

TEST(SelectiveScanStep, DtOfZeroKeepsTheState) {
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (bool dt_softplus : {false, true}) {
      ScanProblem p{.batch = 2, .seqlen = 1, .d_inner = 20, .dt_softplus = dt_softplus};
      p.fill();
      p.dt_bias.clear();
      // softplus(-200) is 0 in float32.
      std::fill(p.dt.begin(), p.dt.end(), dt_softplus ? -200.0F : 0.0F);
      const auto before = p.states;
      run(p, pool);
      EXPECT_TRUE(test::same_bits(p.states, before)) << name_of(tier);
    }
  }
}

TEST(SelectiveScanStep, ExtremeValuesGiveNoNaN) {  // known bug 8
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (float dt : {-1e4F, -100.0F, 0.0F, 1.0F, 100.0F, 1e4F}) {
      for (float A : {-1e-30F, -1.0F, -100.0F, -1e4F, -1e30F}) {
        ScanProblem p = ScanProblem{.batch = 1, .seqlen = 1, .d_inner = 501}.fill();
        p.dt_bias.clear();
        std::fill(p.x.begin(), p.x.end(), 1.0F);
        std::fill(p.B.begin(), p.B.end(), 1.0F);
        std::fill(p.C.begin(), p.C.end(), 1.0F);
        std::fill(p.dt.begin(), p.dt.end(), dt);
        std::fill(p.A.begin(), p.A.end(), A);
        SCOPED_TRACE(::testing::Message() << name_of(tier) << " dt " << dt << " A " << A);
        Pooled pooled_y;
        Pooled pooled_states;
        compare_step(p, pool, pooled_y, pooled_states, "");
        EXPECT_TRUE(pooled_y.as_good_as_plain());
        EXPECT_TRUE(pooled_states.as_good_as_plain());
        for (float y : run(p, pool)) EXPECT_TRUE(std::isfinite(y));
        for (float h : p.states) EXPECT_TRUE(std::isfinite(h));
      }
    }
  }
}

TEST(SelectiveScanStep, StridedViewsAndOutputInPlace) {
  constexpr std::int64_t kInner = 70;
  ThreadPool pool(2);
  const ScanProblem start = ScanProblem{.batch = 3, .seqlen = 1, .d_inner = kInner}.fill();
  ScanProblem apart = start;
  const auto expected = run(apart, pool);
  // One wide row per sequence: x, z, dt, B, C; y takes the place of x.
  constexpr std::int64_t kRow = 3 * kInner + 2 * 16 + 5;
  std::vector<float> memory(3 * kRow, -7.0F);
  const TensorView rows = TensorView::of(memory.data(), {3, kRow});
  std::int64_t column = 2;
  const auto place = [&](const std::vector<float>& v, std::int64_t width) {
    const TensorView view = rows.narrow(1, column, width);
    column += width;
    for (std::int64_t b = 0; b < 3; ++b) {
      std::copy_n(v.data() + b * width, width, view[b].as<float>());
    }
    return view;
  };
  std::vector<float> states(3 * kInner * 20, -7.0F);
  const TensorView state = TensorView::of(states.data(), {3, kInner, 20}).narrow(2, 2, 16);
  for (std::int64_t i = 0; i < 3 * kInner; ++i) {
    std::copy_n(start.states.data() + i * 16, 16, state[i / kInner][i % kInner].as<float>());
  }
  const TensorView x = place(start.x, kInner);
  SelectiveScanStepArgs args = step_args(start, x, state);
  args.x = x;
  args.z = place(start.z, kInner);
  args.dt = place(start.dt, kInner);
  args.B = place(start.B, 16).split_last(1);
  args.C = place(start.C, 16).split_last(1);
  const auto before = memory;
  cpu::selective_scan_step(args, pool);
  for (std::int64_t b = 0; b < 3; ++b) {
    EXPECT_TRUE(
        test::same_bits({x[b].as<float>(), kInner}, {expected.data() + b * kInner, kInner}));
    std::copy_n(start.x.data() + b * kInner, kInner, x[b].as<float>());
  }
  EXPECT_TRUE(test::same_bits(memory, before));
  for (std::int64_t i = 0; i < 3 * kInner; ++i) {
    float* h = state[i / kInner][i % kInner].as<float>();
    EXPECT_TRUE(test::same_bits({h, 16}, {apart.states.data() + i * 16, 16}));
    std::fill_n(h, 16, -7.0F);
  }
  EXPECT_TRUE(test::same_bits(states, std::vector<float>(states.size(), -7.0F)));
}

TEST(SelectiveScanStep, OffsetsBeyond32Bits) {  // known bug 12
  ThreadPool pool(1);
  const test::Sparse<float> memory(test::kBeyond32Bits + 64);
  if (!memory.ok()) GTEST_SKIP() << "no address space for a sparse mapping";
  TensorView rows = TensorView::of(memory.data(), {2, 64});
  rows.strides[0] = test::kBeyond32Bits;
  const std::vector<float> A{-1.0F};
  float* second = memory.data() + test::kBeyond32Bits;
  second[0] = 3;  // x
  second[1] = 2;  // dt
  second[2] = 5;  // B
  second[3] = 7;  // C
  const auto column = [&](std::int64_t c) { return rows.narrow(1, c, 1); };
  cpu::selective_scan_step({.x = column(0),
                            .dt = column(1),
                            .A = ConstTensorView::of(A.data(), {1, 1}),
                            .B = column(2).split_last(1),
                            .C = column(3).split_last(1),
                            .state = column(5).split_last(1),
                            .y = column(4),
                            .dt_softplus = false},
                           pool);
  EXPECT_EQ(memory.data()[4], 0.0F);
  EXPECT_EQ(second[4], 210.0F);
  EXPECT_EQ(second[5], 30.0F);
}

TEST(SelectiveScanStep, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  ScanProblem p = ScanProblem{.batch = 2, .seqlen = 1, .d_inner = 8, .dstate = 4}.fill();
  std::vector<float> y(p.x.size());
  const SelectiveScanStepArgs good =
      step_args(p, TensorView::of(y.data(), {2, 8}), TensorView::of(p.states.data(), {2, 8, 4}));
  const auto error_of = [&](const SelectiveScanStepArgs& args) -> std::string {
    return test::error_of([&] { cpu::selective_scan_step(args, pool); });
  };
  EXPECT_EQ(error_of(good), "no error");
  SelectiveScanStepArgs args = good;
  args.state = {};
  EXPECT_EQ(error_of(args),
            "selective_scan_step: state is missing, expected a tensor of shape (2, 8, 4)");
  args = good;
  args.state.dtype = DType::bf16;
  EXPECT_EQ(error_of(args), "selective_scan_step: state has dtype bf16, expected f32");
  args = good;
  args.C = ConstTensorView::of(p.C.data(), {2, 2, 2});
  EXPECT_EQ(error_of(args), "selective_scan_step: C has shape (2, 2, 2), expected (2, 1, 4)");
  args = good;
  args.B = ConstTensorView::of(p.B.data(), {2, 0, 4});
  EXPECT_EQ(error_of(args),
            "selective_scan_step: B has 0 groups, expected a divisor of d_inner, 8");
  args = good;
  args.x.strides = {8, 2};
  EXPECT_EQ(error_of(args),
            "selective_scan_step: x has stride 2 in its last dimension, expected 1");
}

}  // namespace
}  // namespace adder
