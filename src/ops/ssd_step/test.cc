#include <gtest/gtest.h>

#include <cstring>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/ssd_step/test_case.h"
#include "tests/support/error_of.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::same_bits;
using test::StepCase;
using test::StepShape;

TEST(SsdStep, AsGoodAsPlainLoopsInEveryTierSizeAndDtype) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t headdim : {1, 3, 5, 16, 64, 80}) {
      for (std::int64_t dstate : {1, 3, 5, 16, 100, 128}) {
        for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " headdim " << headdim << " dstate "
                                            << dstate << " " << name_of(dtype));
          const StepCase c({.headdim = headdim, .dstate = dstate, .dtype = dtype});
          c.expect_right(c.run(pool));
        }
      }
    }
  }
}

TEST(SsdStep, TakesEveryOption) {
  ThreadPool pool(1);
  for (int options = 0; options < 64; ++options) {
    SCOPED_TRACE(options);
    StepCase c({.nheads = 3, .headdim = 20, .ngroups = 3, .dstate = 24});
    const Tensor D_per_head = convert(c.dt_bias.view, DType::f32);
    if ((options & 1) != 0) c.args.D = (options & 2) != 0 ? D_per_head.view : ConstTensorView();
    if ((options & 4) != 0) c.args.z = {};
    if ((options & 8) != 0) c.args.dt_bias = {};
    if ((options & 16) != 0) c.args.dt_softplus = false;
    if ((options & 32) != 0) {
      c.args.dt_min = 0.3F;
      c.args.dt_max = 0.7F;
    }
    c.expect_right(c.run(pool));
  }
}

TEST(SsdStep, ReadsSlicesOfWiderRows) {
  // As a model calls it: x, B and C are slices of one row of the convolution's output.
  ThreadPool pool(2);
  const StepShape s{.batch = 3, .nheads = 4, .headdim = 12, .ngroups = 2, .dstate = 10};
  StepCase c(s);
  constexpr std::int64_t kWidth = 4 * 12 + 2 * 20 + 7;
  std::vector<float> rows(3 * kWidth, std::nanf(""));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    std::memcpy(&rows[b * kWidth], c.x.as<float>() + b * 48, 48 * 4);
    std::memcpy(&rows[b * kWidth + 48], c.B.as<float>() + b * 20, 20 * 4);
    std::memcpy(&rows[b * kWidth + 68], c.C.as<float>() + b * 20, 20 * 4);
  }
  const auto packed = c.run(pool);
  const auto whole = ConstTensorView::of(rows.data(), {s.batch, kWidth});
  c.args.x = whole.narrow(1, 0, 48).split_last(4);
  c.args.B = whole.narrow(1, 48, 20).split_last(2);
  c.args.C = whole.narrow(1, 68, 20).split_last(2);
  const auto sliced = c.run(pool);
  EXPECT_TRUE(same_bits(sliced.y, packed.y));
  EXPECT_TRUE(same_bits(sliced.state, packed.state));
}

TEST(SsdStep, OutputMayBeTheInputOrTheGate) {
  ThreadPool pool(1);
  StepCase c({.headdim = 19});
  const auto apart = c.run(pool);
  for (Tensor* target : {&c.x, &c.z}) {
    const Tensor saved = convert(target->view, DType::f32);
    std::vector<float> state = c.state;
    SsdStepArgs call = c.args;
    call.y = target->view;
    call.state = TensorView::of(state.data(), {2, 4, 19, 16});
    cpu::ssd_step(call, pool);
    EXPECT_TRUE(same_bits(target->span<float>(), apart.y));
    std::memcpy(target->view.data, saved.view.data,
                static_cast<std::size_t>(saved.view.size_bytes()));
  }
}

TEST(SsdStep, ZeroTimeStepKeepsTheState) {
  ThreadPool pool(1);
  StepCase c({});
  c.args.dt_softplus = false;
  c.args.dt_bias = {};
  for (float& v : c.dt.span<float>()) v = 0;
  EXPECT_TRUE(same_bits(c.run(pool).state, c.state));
}

TEST(SsdStep, IsLinearInX) {
  ThreadPool pool(1);
  StepCase c({.dstate = 30});
  c.args.z = {};
  std::fill(c.state.begin(), c.state.end(), 0.0F);
  const auto once = c.run(pool);
  for (float& v : c.x.span<float>()) v *= 4;
  auto four = c.run(pool);
  for (float& v : four.y) v /= 4;
  for (float& v : four.state) v /= 4;
  EXPECT_TRUE(same_bits(four.y, once.y));
  EXPECT_TRUE(same_bits(four.state, once.state));
}

TEST(SsdStep, ARowDoesNotDependOnThreadsOrOtherRows_KnownBug13) {
  ThreadPool one(1);
  ThreadPool three(3);
  const StepShape s{.batch = 5, .nheads = 6, .headdim = 48, .ngroups = 2, .dstate = 64};
  StepCase c(s);
  const auto all = c.run(one);
  const auto threaded = c.run(three);
  EXPECT_TRUE(same_bits(threaded.y, all.y));
  EXPECT_TRUE(same_bits(threaded.state, all.state));
  const std::int64_t row_size = s.nheads * s.headdim * s.dstate;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    std::vector<float> state(c.state.begin() + b * row_size, c.state.begin() + (b + 1) * row_size);
    std::vector<float> y(static_cast<std::size_t>(s.nheads * s.headdim));
    SsdStepArgs call = c.args;
    call.x = c.args.x.narrow(0, b, 1);
    call.z = c.args.z.narrow(0, b, 1);
    call.B = c.args.B.narrow(0, b, 1);
    call.C = c.args.C.narrow(0, b, 1);
    call.dt = c.args.dt.narrow(0, b, 1);
    call.state = TensorView::of(state.data(), {1, s.nheads, s.headdim, s.dstate});
    call.y = TensorView::of(y.data(), {1, s.nheads, s.headdim});
    cpu::ssd_step(call, one);
    const auto begin = static_cast<std::size_t>(b * s.nheads * s.headdim);
    EXPECT_TRUE(same_bits(y, std::span(all.y).subspan(begin, y.size())));
    EXPECT_TRUE(same_bits(
        state, std::span(all.state).subspan(static_cast<std::size_t>(b * row_size), state.size())));
  }
}

TEST(SsdStep, ExtremeDecaysStayFinite_KnownBug8) {
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (float raw : {-100.0F, 0.0F, 100.0F}) {
      for (bool softplus : {false, true}) {
        StepCase c({});
        for (float& v : c.dt.span<float>()) v = raw;
        for (float& a : c.A.span<float>()) a = -100;  // dt · A of -1e4
        c.args.dt_bias = {};
        c.args.dt_softplus = softplus;
        c.expect_right(c.run(pool));
      }
    }
  }
}

TEST(SsdStep, NaNShowsInsteadOfBeingClampedAway) {
  ThreadPool pool(1);
  StepCase c({});
  c.dt.span<float>()[0] = std::nanf("");
  const auto out = c.run(pool);
  EXPECT_TRUE(std::isnan(out.y[0]));
  EXPECT_FALSE(std::isnan(out.y[static_cast<std::size_t>(c.shape.headdim)]));
}

TEST(SsdStep, OffsetsBeyond32Bits_KnownBug12) {
  // Two sequences whose states and inputs lie 2^31 elements apart.
  ThreadPool pool(1);
  test::Sparse<float> far_state(test::kBeyond32Bits + 64);
  test::Sparse<float> far_x(test::kBeyond32Bits + 64);
  if (!far_state.ok() || !far_x.ok()) GTEST_SKIP() << "the system refuses the address space";
  const StepShape s{.batch = 2, .nheads = 1, .headdim = 4, .ngroups = 1, .dstate = 8};
  StepCase c(s);
  const auto near = c.run(pool);
  for (std::int64_t b = 0; b < 2; ++b) {
    std::memcpy(far_state.data() + b * test::kBeyond32Bits, &c.state[b * 32], 32 * 4);
    std::memcpy(far_x.data() + b * test::kBeyond32Bits, c.x.as<float>() + b * 4, 4 * 4);
  }
  std::vector<float> y(8);
  SsdStepArgs call = c.args;
  call.x = ConstTensorView::of(far_x.data(), {2, 1, 4});
  call.x.strides[0] = test::kBeyond32Bits;
  call.state = TensorView::of(far_state.data(), {2, 1, 4, 8});
  call.state.strides[0] = test::kBeyond32Bits;
  call.y = TensorView::of(y.data(), {2, 1, 4});
  cpu::ssd_step(call, pool);
  EXPECT_TRUE(same_bits(y, near.y));
  EXPECT_TRUE(
      same_bits({far_state.data() + test::kBeyond32Bits, 32}, std::span(near.state).subspan(32)));
}

TEST(SsdStep, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  StepCase c({});
  std::vector<float> y(2 * 4 * 16);
  SsdStepArgs good = c.args;
  good.state = TensorView::of(c.state.data(), {2, 4, 16, 16});
  good.y = TensorView::of(y.data(), {2, 4, 16});
  const auto error_of = [&](auto&& change) {
    SsdStepArgs args = good;
    change(args);
    return test::error_of([&] { cpu::ssd_step(args, pool); });
  };
  EXPECT_EQ(error_of([](auto& a) { a.state = {}; }),
            "ssd_step: state is missing, expected a tensor of shape (2, 4, 16, 16)");
  EXPECT_EQ(error_of([](auto& a) { a.B = a.B.narrow(1, 0, 0); }),
            "ssd_step: B has 0 groups, expected a divisor of the 4 heads");
  EXPECT_EQ(error_of([](auto& a) { a.dt_min = 2, a.dt_max = 1; }),
            "ssd_step: the limits of dt are 2 and 1, expected 0 <= dt_min <= dt_max");
  const std::vector<float> growing{-1, -1, 0.5F, -1};
  EXPECT_EQ(error_of([&](auto& a) { a.A = ConstTensorView::of(growing.data(), {4}); }),
            "ssd_step: A is 0.5 for head 2, expected a finite negative number");
  EXPECT_EQ(error_of([](auto& a) { a.state.dtype = DType::bf16; }),
            "ssd_step: state has dtype bf16, expected f32");
  const auto rejects = [&](auto&& change) { return error_of(change) != "no error"; };
  EXPECT_FALSE(rejects([](auto&) {}));
  EXPECT_TRUE(rejects([](auto& a) { a.x = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.dtype = DType::i32; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.strides[2] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x = a.x.narrow(2, 0, 0); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt = a.dt.narrow(0, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt.dtype = DType::bf16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.A = a.A.narrow(0, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.B.dtype = DType::bf16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.B = a.B.narrow(2, 0, 0); }));
  EXPECT_TRUE(rejects([](auto& a) { a.C = a.C.narrow(2, 0, 8); }));
  EXPECT_TRUE(rejects([](auto& a) { a.D = a.D.narrow(1, 0, 8); }));
  EXPECT_TRUE(rejects([](auto& a) { a.z = a.z.narrow(1, 0, 2); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_bias = a.dt_bias.narrow(0, 0, 2); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_min = -1; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_max = std::nanf(""); }));
  EXPECT_TRUE(rejects([](auto& a) { a.state.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.y = a.y.narrow(0, 0, 1); }));
}

}  // namespace
}  // namespace adder
