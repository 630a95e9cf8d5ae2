#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/test_problem.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/pooled.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::ConvProblem;
using test::Guarded;
using test::Pooled;

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::vector<float> zeros(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

// Runs the operation between canaries and adds its y to `pooled`; the state is exact.
void compare(const ConvProblem& p, ThreadPool& pool, Pooled& pooled, const std::string& label) {
  Guarded<float> y(p.ntokens() * p.channels);
  Guarded<float> state(p.nsequences() * (p.width - 1) * p.channels);
  state.fill(p.conv_state);
  cpu::causal_conv1d(p.args(y.view({p.ntokens(), p.channels}),
                            state.view({p.nsequences(), p.width - 1, p.channels})),
                     pool);
  const auto plain = p.reference<float>();
  pooled.add(y.span(), p.reference<double>().y, plain.y, label);
  EXPECT_TRUE(test::same_bits(state.span(), plain.conv_state)) << label;
  EXPECT_TRUE(y.intact()) << label;
  EXPECT_TRUE(state.intact()) << label;
}

TEST(CausalConv1d, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t width : {2, 3, 4, 5, 6, 7, 8}) {
      Pooled pooled;
      for (std::int32_t ntokens : {0, 1, 2, 3, 4, 5, 9, 150}) {
        for (std::int64_t channels : {1, 15, 16, 17, 100, 257}) {
          ConvProblem p = ConvProblem::random({0, ntokens}, channels, width, width % 2 == 0);
          p.silu = width % 3 != 0;
          compare(p, pool, pooled,
                  fmt::format("{} ntokens {} channels {} width {}", name_of(tier), ntokens,
                              channels, width));
        }
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

TEST(CausalConv1d, WithoutStateTheHistoryIsZeros) {
  ThreadPool pool(2);
  ConvProblem p = ConvProblem::random({0, 11}, 70, 4);
  p.conv_state = zeros(3 * 70);
  const auto start = p;
  const auto expected = p.run(pool);
  std::vector<float> y(expected.size());
  CausalConv1dArgs args = start.args(TensorView::of(y.data(), {11, 70}), {});
  args.cu_seqlens = {};
  cpu::causal_conv1d(args, pool);
  EXPECT_TRUE(test::same_bits(y, expected));
}

// Known bugs 3 and 4: more than one token with a cache drops history; an incoming state ignored.
TEST(CausalConv1d, ASplitAtEveryPositionEqualsOnePass) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t width : {2, 3, 4, 8}) {
      const ConvProblem whole = ConvProblem::random({0, 21}, 37, width);
      ConvProblem pass = whole;
      const auto expected = pass.run(pool);
      for (std::int64_t split = 0; split <= 21; ++split) {
        SCOPED_TRACE(::testing::Message() << "width " << width << " split " << split);
        ConvProblem head = whole.part(0, split, whole.conv_state);
        std::vector<float> y = head.run(pool);
        ConvProblem tail = whole.part(split, 21, head.conv_state);
        append(y, tail.run(pool));
        EXPECT_TRUE(test::same_bits(y, expected));
        EXPECT_TRUE(test::same_bits(tail.conv_state, pass.conv_state));
      }
    }
  }
}

TEST(CausalConv1d, StepsOfOneTokenEqualOnePass) {
  ThreadPool pool(2);
  const ConvProblem whole = ConvProblem::random({0, 30}, 530, 4);
  ConvProblem pass = whole;
  const auto expected = pass.run(pool);
  std::vector<float> y;
  std::vector<float> state = whole.conv_state;
  for (std::int64_t t = 0; t < 30; ++t) {
    ConvProblem step = whole.part(t, t + 1, state);
    append(y, step.run(pool));
    state = step.conv_state;
  }
  EXPECT_TRUE(test::same_bits(y, expected));
  EXPECT_TRUE(test::same_bits(state, pass.conv_state));
}

TEST(CausalConv1d, SequencesShorterThanTheWindow) {  // known bug 14
  ThreadPool pool(1);
  for (std::int64_t width : {2, 4, 8}) {
    for (std::int32_t ntokens = 0; ntokens <= width; ++ntokens) {
      SCOPED_TRACE(::testing::Message() << "width " << width << " ntokens " << ntokens);
      ConvProblem p = ConvProblem::random({0, ntokens}, 3, width);
      std::vector<float> inputs = p.conv_state;  // all inputs there have ever been
      append(inputs, p.x);
      p.run(pool);
      EXPECT_TRUE(test::same_bits(p.conv_state, std::span(inputs).last(p.conv_state.size())));
    }
  }
}

TEST(CausalConv1d, TheStateHoldsInputsBeforeTheActivation) {  // known bug 15
  ThreadPool pool(1);
  ConvProblem p = ConvProblem::random({0, 6}, 5, 4);
  p.run(pool);
  EXPECT_TRUE(test::same_bits(p.conv_state, std::span(p.x).last(3 * 5)));
}

// Known bugs 9 and 13: sequences of odd lengths, some empty, in one call.
TEST(CausalConv1d, PackedSequencesEqualSingleOnes) {
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (int nthreads : {1, 2, 5}) {
      ThreadPool pool(nthreads);
      for (std::int64_t channels : {20, 300}) {
        const ConvProblem start =
            ConvProblem::random({0, 1, 1, 4, 11, 11, 300, 301, 303}, channels, 4);
        ConvProblem packed = start;
        const auto y = packed.run(pool);
        std::vector<float> expected_y;
        std::vector<float> expected_state;
        for (std::int64_t s = 0; s < start.nsequences(); ++s) {
          const auto at = static_cast<std::size_t>(s);
          ConvProblem one =
              start.part(start.cu_seqlens[at], start.cu_seqlens[at + 1], start.state_of(s));
          append(expected_y, one.run(pool));
          append(expected_state, one.conv_state);
        }
        EXPECT_TRUE(test::same_bits(y, expected_y)) << nthreads << " threads";
        EXPECT_TRUE(test::same_bits(packed.conv_state, expected_state)) << nthreads << " threads";
      }
    }
  }
}

TEST(CausalConv1d, InterleavedSequencesDoNotMix) {  // known bug 13
  constexpr std::int32_t kSequences = 5;
  constexpr std::int64_t kChannels = 300;
  constexpr std::int64_t kSteps = 7;
  ThreadPool pool(3);
  std::vector<ConvProblem> alone;
  ConvProblem together = ConvProblem::random({0, 1, 2, 3, 4, 5}, kChannels, 4);
  for (std::int64_t s = 0; s < kSequences; ++s) {
    alone.push_back(together.part(s, s + 1, together.state_of(s)));
  }
  test::Random random(1);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    together.x = random.normals(kSequences * kChannels);
    const auto y = together.run(pool);
    for (std::int64_t s = 0; s < kSequences; ++s) {
      ConvProblem& one = alone[static_cast<std::size_t>(s)];
      one.x.assign(together.x.begin() + s * kChannels, together.x.begin() + (s + 1) * kChannels);
      const std::span all(y);
      EXPECT_TRUE(test::same_bits(one.run(pool),
                                  all.subspan(static_cast<std::size_t>(s * kChannels), kChannels)));
      EXPECT_TRUE(test::same_bits(one.conv_state, together.state_of(s)));
    }
  }
}

// ---- seq_idx ------------------------------------------------------------------------------------

TEST(CausalConv1d, SeqIdxAsGoodAsPlainLoops) {
  test::Random random(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (int nthreads : {1, 4}) {
      ThreadPool pool(nthreads);
      Pooled pooled;
      for (int round = 0; round < 12; ++round) {
        ConvProblem p = ConvProblem::random({0, 90, 90, 200, 203}, 19, 2 + round % 7);
        std::int32_t index = 0;
        for (std::int64_t t = 0; t < p.ntokens(); ++t) {
          if (random.integer(0, 9) == 0) index = static_cast<std::int32_t>(random.integer(0, 3));
          p.seq_idx.push_back(random.integer(0, 3) == 0 ? -1 : index);
        }
        compare(p, pool, pooled,
                fmt::format("{} threads {} round {}", name_of(tier), nthreads, round));
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

// Known bug 5: padding leaks into the state.
TEST(CausalConv1d, PaddingOnEitherSideChangesNothing) {
  ThreadPool pool(2);
  constexpr std::int64_t kChannels = 21;
  for (std::int64_t left : {0, 1, 2, 5, 70}) {
    for (std::int64_t right : {0, 1, 2, 5, 70}) {
      SCOPED_TRACE(::testing::Message() << "left " << left << " right " << right);
      ConvProblem plain = ConvProblem::random({0, 6}, kChannels, 4);
      ConvProblem padded = plain;
      padded.cu_seqlens = {0, static_cast<std::int32_t>(left + 6 + right)};
      padded.x.assign(static_cast<std::size_t>((left + 6 + right) * kChannels), 99.0F);
      std::copy(plain.x.begin(), plain.x.end(), padded.x.begin() + left * kChannels);
      padded.seq_idx.assign(static_cast<std::size_t>(left + 6 + right), -1);
      std::fill_n(padded.seq_idx.begin() + left, 6, 0);
      const auto y = padded.run(pool);
      std::vector<float> expected = zeros(left * kChannels);
      append(expected, plain.run(pool));
      append(expected, zeros(right * kChannels));
      EXPECT_TRUE(test::same_bits(y, expected));
      EXPECT_TRUE(test::same_bits(padded.conv_state, plain.conv_state));
    }
  }
}

TEST(CausalConv1d, AChangeOfSeqIdxStartsANewSequence) {
  ThreadPool pool(2);
  constexpr std::int64_t kChannels = 33;
  const std::vector<std::int32_t> lengths{5, 1, 2, 7, 3};
  ConvProblem packed = ConvProblem::random({0, 18}, kChannels, 4);
  const ConvProblem start = packed;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    packed.seq_idx.insert(packed.seq_idx.end(), static_cast<std::size_t>(lengths[s]),
                          static_cast<std::int32_t>(s));
  }
  const auto y = packed.run(pool);
  std::vector<float> expected;
  std::vector<float> state = start.conv_state;  // continues into the first run
  std::int64_t begin = 0;
  for (std::int32_t length : lengths) {
    ConvProblem one = start.part(begin, begin + length, state);
    append(expected, one.run(pool));
    begin += length;
    state = zeros(3 * kChannels);
    if (begin == 18) {
      EXPECT_TRUE(test::same_bits(packed.conv_state, one.conv_state));
    }
  }
  EXPECT_TRUE(test::same_bits(y, expected));
}

// ---- independence -------------------------------------------------------------------------------

TEST(CausalConv1d, ATokenDoesNotSeeLaterTokensOrOtherChannels) {
  ThreadPool pool(2);
  ConvProblem p = ConvProblem::random({0, 40}, 50, 4);
  ConvProblem changed = p;
  for (std::size_t t = 20; t < 40; ++t) {
    for (std::size_t c = 0; c < 50; ++c) changed.x[t * 50 + c] = 1e30F;
  }
  for (std::size_t t = 0; t < 20; ++t) changed.x[t * 50 + 7] = -3.0F;
  auto y = p.run(pool);
  auto other = changed.run(pool);
  y.resize(20 * 50);
  other.resize(20 * 50);
  for (std::size_t t = 0; t < 20; ++t) y[t * 50 + 7] = other[t * 50 + 7] = 0;
  EXPECT_TRUE(test::same_bits(y, other));
}

TEST(CausalConv1d, ThreadsChangeNothing) {
  for (std::int64_t channels : {10, 256, 1000}) {
    for (std::int32_t ntokens : {1, 63, 1000}) {
      ConvProblem one = ConvProblem::random({0, ntokens}, channels, 4);
      const ConvProblem start = one;
      ThreadPool single(1);
      const auto expected = one.run(single);
      for (int nthreads : {2, 3, 8, 33}) {
        ThreadPool pool(nthreads);
        ConvProblem many = start;
        EXPECT_TRUE(test::same_bits(many.run(pool), expected))
            << channels << " channels, " << ntokens << " tokens, " << nthreads << " threads";
        EXPECT_TRUE(test::same_bits(many.conv_state, one.conv_state));
      }
    }
  }
}

TEST(CausalConv1d, AnyWeightLayoutGivesTheSameBits) {
  constexpr std::int64_t kChannels = 600;
  constexpr std::int64_t kWidth = 4;
  ThreadPool pool(2);
  const ConvProblem p = ConvProblem::random({0, 9}, kChannels, kWidth);
  ConvProblem rows = p;
  const auto expected = rows.run(pool);
  // (width, channels) in memory, seen through its transposed view, and one with gaps.
  for (const auto& [channel_stride, tap_stride] :
       {std::pair{std::int64_t{1}, kChannels}, std::pair{std::int64_t{3}, 3 * kChannels + 1},
        std::pair{kWidth + 3, std::int64_t{1}}}) {
    std::vector<float> memory(static_cast<std::size_t>(kChannels * 16), NAN);
    for (std::int64_t c = 0; c < kChannels; ++c) {
      for (std::int64_t k = 0; k < kWidth; ++k) {
        memory[static_cast<std::size_t>(c * channel_stride + k * tap_stride)] =
            p.weight[static_cast<std::size_t>(c * kWidth + k)];
      }
    }
    std::vector<float> y(expected.size());
    auto state = p.conv_state;
    CausalConv1dArgs args = p.args(TensorView::of(y.data(), {9, kChannels}),
                                   TensorView::of(state.data(), {1, kWidth - 1, kChannels}));
    args.weight = ConstTensorView::of(memory.data(), {kChannels, kWidth});
    args.weight.strides = {channel_stride, tap_stride};
    cpu::causal_conv1d(args, pool);
    EXPECT_TRUE(test::same_bits(y, expected)) << "channel stride " << channel_stride;
  }
}

TEST(CausalConv1d, StridedRowsLeaveTheGapsAlone) {
  constexpr std::int64_t kChannels = 45;
  ThreadPool pool(2);
  ConvProblem p = ConvProblem::random({0, 3, 8}, kChannels, 4);
  const ConvProblem start = p;
  const auto expected = p.run(pool);
  std::vector<float> x(8 * 100, NAN);
  std::vector<float> y(8 * 90, -7.0F);
  std::vector<float> state(2 * 3 * 64, -7.0F);
  const auto x_rows = TensorView::of(x.data(), {8, 100}).narrow(1, 33, kChannels);
  const auto y_rows = TensorView::of(y.data(), {8, 90}).narrow(1, 11, kChannels);
  const auto states = TensorView::of(state.data(), {2, 3, 64}).narrow(2, 5, kChannels);
  for (std::int64_t t = 0; t < 8; ++t) {
    std::copy_n(p.x.data() + t * kChannels, kChannels, x_rows[t].as<float>());
  }
  for (std::int64_t i = 0; i < 6; ++i) {
    std::copy_n(start.conv_state.data() + i * kChannels, kChannels,
                states[i / 3][i % 3].as<float>());
  }
  CausalConv1dArgs args = start.args(y_rows, states);
  args.x = x_rows;
  cpu::causal_conv1d(args, pool);
  std::int64_t untouched = 0;
  for (float v : y) untouched += v == -7.0F ? 1 : 0;
  EXPECT_EQ(untouched, 8 * (90 - kChannels));
  untouched = 0;
  for (float v : state) untouched += v == -7.0F ? 1 : 0;
  EXPECT_EQ(untouched, 6 * (64 - kChannels));
  for (std::int64_t t = 0; t < 8; ++t) {
    EXPECT_TRUE(test::same_bits({y_rows[t].as<float>(), kChannels},
                                {expected.data() + t * kChannels, kChannels}));
  }
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(test::same_bits({states[i / 3][i % 3].as<float>(), kChannels},
                                {p.conv_state.data() + i * kChannels, kChannels}));
  }
}

// ---- limits and errors --------------------------------------------------------------------------

TEST(CausalConv1d, ExtremeValuesGiveNoNaN) {  // known bug 8
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (float value : {-1e30F, -1e4F, -100.0F, 0.0F, 100.0F, 1e4F, 1e30F}) {
      ConvProblem p = ConvProblem::random({0, 9}, 17, 4);
      std::fill(p.x.begin(), p.x.end(), value);
      for (float y : p.run(pool)) EXPECT_TRUE(std::isfinite(y)) << name_of(tier) << " " << value;
    }
  }
}

TEST(CausalConv1d, OffsetsBeyond32Bits) {  // known bug 12
  ThreadPool pool(1);
  const test::Sparse<float> memory(test::kBeyond32Bits + 64);
  if (!memory.ok()) GTEST_SKIP() << "no address space for a sparse mapping";
  TensorView rows = TensorView::of(memory.data(), {2, 64});
  rows.strides[0] = test::kBeyond32Bits;
  const std::vector<float> weight{10, 1, 10, 1};
  memory.data()[1] = 2.0F;                        // token 0, channel 1
  memory.data()[test::kBeyond32Bits + 1] = 3.0F;  // token 1
  cpu::causal_conv1d({.x = rows.narrow(1, 0, 2),
                      .weight = ConstTensorView::of(weight.data(), {2, 2}),
                      .y = rows.narrow(1, 32, 2),
                      .silu = false},
                     pool);
  EXPECT_EQ(memory.data()[33], 2.0F);
  EXPECT_EQ(memory.data()[test::kBeyond32Bits + 33], 23.0F);
}

TEST(CausalConv1d, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  const ConvProblem p = ConvProblem::random({0, 2, 6}, 8, 4);
  std::vector<float> y(p.x.size());
  std::vector<float> state(p.conv_state);
  const CausalConv1dArgs good =
      p.args(TensorView::of(y.data(), {6, 8}), TensorView::of(state.data(), {2, 3, 8}));
  const auto error_of = [&](const CausalConv1dArgs& args) -> std::string {
    return test::error_of([&] { cpu::causal_conv1d(args, pool); });
  };
  EXPECT_EQ(error_of(good), "no error");
  CausalConv1dArgs args = good;
  args.conv_state = TensorView::of(state.data(), {2, 4, 6});
  EXPECT_EQ(error_of(args), "causal_conv1d: conv_state has shape (2, 4, 6), expected (2, 3, 8)");
  args = good;
  args.weight = ConstTensorView::of(p.weight.data(), {8, 1});
  EXPECT_EQ(error_of(args), "causal_conv1d: weight has width 1, expected 2 to 8");
  args = good;
  args.bias = ConstTensorView::of(p.bias.data(), {7});
  EXPECT_EQ(error_of(args), "causal_conv1d: bias has shape (7), expected (8)");
  args = good;
  const std::vector<std::int32_t> past_the_end{0, 2, 7};
  args.cu_seqlens = ConstTensorView::of(past_the_end.data(), {3});
  EXPECT_EQ(error_of(args),
            "causal_conv1d: cu_seqlens ends at 7, expected the number of tokens, 6");
  args = good;
  args.seq_idx = ConstTensorView::of(past_the_end.data(), {3});
  EXPECT_EQ(error_of(args), "causal_conv1d: seq_idx has shape (3), expected (6)");
  args = good;
  args.y = TensorView::of(const_cast<float*>(p.x.data()), {6, 8});
  EXPECT_EQ(error_of(args), "causal_conv1d: y is x, expected another tensor");
}

}  // namespace
}  // namespace adder
