// Packed sequences, resets and padding: a sequence equals the sequence alone, bit for bit.

#include <gtest/gtest.h>

#include "core/cpu_tier.h"
#include "ops/ssd_forward/test_case.h"

namespace adder {
namespace {

using test::same_bits;
using test::SsdCase;
using test::SsdOutput;

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kToken = kHeads * 16;       // values of one token
constexpr std::int64_t kState = kHeads * 16 * 16;  // values of one sequence's states

std::span<const float> part(const std::vector<float>& values, std::int64_t begin,
                            std::int64_t count) {
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

// Tokens [begin, end) of row `row`, alone, from the initial state of `sequence`; or from zeros if
// that is negative.
SsdOutput alone(const SsdCase& whole, std::int64_t row, std::int64_t begin, std::int64_t end,
                std::int64_t sequence, ThreadPool& pool) {
  SsdCase one = whole;
  one.shape.batch = 1;
  one.args.cu_seqlens = {};
  one.args.seq_idx = {};
  for (ConstTensorView* view : {&one.args.x, &one.args.dt, &one.args.B, &one.args.C, &one.args.z}) {
    *view = view->narrow(0, row, 1);
  }
  one.narrow(begin, end - begin);
  one.args.initial_states =
      sequence < 0 ? ConstTensorView() : whole.args.initial_states.narrow(0, sequence, 1);
  return one.run(pool);
}

TEST(SsdForward, PackedSequencesOfOddLengthsEqualEachAlone_KnownBug9) {
  ThreadPool pool(3);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    const std::vector<std::int32_t> offsets{0, 0, 1, 8, 8, 41, 73, 74, 137, 137};
    SsdCase c({.seqlen = 137, .nheads = kHeads, .nsequences = 9});
    c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {10});
    const auto packed = c.run(pool);
    c.expect_right(packed);
    for (std::int64_t s = 0; s < 9; ++s) {
      const std::int64_t begin = offsets[static_cast<std::size_t>(s)];
      const std::int64_t end = offsets[static_cast<std::size_t>(s) + 1];
      const auto single = alone(c, 0, begin, end, s, pool);
      EXPECT_TRUE(same_bits(part(packed.y, begin * kToken, (end - begin) * kToken), single.y));
      EXPECT_TRUE(same_bits(part(packed.final_states, s * kState, kState), single.final_states));
    }
  }
}

TEST(SsdForward, AnEmptySequenceEndsAsItBegan) {
  ThreadPool pool(1);
  const std::vector<std::int32_t> offsets{0, 0};
  SsdCase c({.seqlen = 0, .nheads = kHeads, .nsequences = 1});
  c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {2});
  EXPECT_TRUE(same_bits(c.run(pool).final_states, c.initial_states.span<float>()));
  c.args.initial_states = {};
  EXPECT_TRUE(same_bits(c.run(pool).final_states, std::vector<float>(kState, 0.0F)));
}

TEST(SsdForward, NoSequencesAtAll) {
  ThreadPool pool(1);
  const std::vector<std::int32_t> offsets{0};
  SsdCase c({.seqlen = 0, .nheads = kHeads});
  c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {1});
  c.args.initial_states = {};
  const auto out = c.run(pool);
  EXPECT_TRUE(out.y.empty());
  EXPECT_TRUE(out.final_states.empty());
}

TEST(SsdForward, TheStateRestartsWhereSeqIdxChanges_KnownBug9) {
  ThreadPool pool(2);
  // An index that comes back is another sequence.
  const std::vector<std::int64_t> bounds{0, 5, 6, 40, 90, 100};
  const std::vector<std::int32_t> indices{0, 1, 0, 7, 3};
  SsdCase c({.seqlen = 100, .nheads = kHeads});
  std::vector<std::int32_t> seq_idx;
  for (std::size_t s = 0; s < indices.size(); ++s) {
    seq_idx.resize(static_cast<std::size_t>(bounds[s + 1]), indices[s]);
  }
  c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {1, 100});
  const auto got = c.run(pool);
  c.expect_right(got);
  for (std::size_t s = 0; s < indices.size(); ++s) {
    const auto single = alone(c, 0, bounds[s], bounds[s + 1], s == 0 ? 0 : -1, pool);
    EXPECT_TRUE(
        same_bits(part(got.y, bounds[s] * kToken, (bounds[s + 1] - bounds[s]) * kToken), single.y));
    if (s + 1 == indices.size()) {
      EXPECT_TRUE(same_bits(got.final_states, single.final_states));
    }
  }
}

TEST(SsdForward, ResetsInsidePackedSequences) {
  ThreadPool pool(2);
  const std::vector<std::int32_t> offsets{0, 50, 120};
  SsdCase c({.seqlen = 120, .nheads = kHeads, .nsequences = 2});
  std::vector<std::int32_t> seq_idx(120, 4);  // the same on both sides of the boundary
  for (std::size_t t = 20; t < 30; ++t) seq_idx[t] = 5;
  for (std::size_t t = 80; t < 85; ++t) seq_idx[t] = -1;
  c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {3});
  c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {1, 120});
  c.expect_right(c.run(pool));
}

// Padding holds garbage: nothing of it may reach the state or the output.
TEST(SsdForward, PaddingLeaksNowhere_KnownBug5) {
  ThreadPool pool(2);
  struct Row {
    std::int64_t begin, end;  // tokens that are not padding
  };
  const std::vector<Row> rows{{0, 70}, {13, 70}, {0, 41}, {33, 34}, {70, 70}};
  for (std::size_t batch : {rows.size(), std::size_t{2}}) {
    SsdCase c({.batch = static_cast<std::int64_t>(batch), .seqlen = 70, .nheads = kHeads});
    std::vector<std::int32_t> seq_idx(batch * 70, 0);
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t < 70; ++t) {
        if (t >= rows[b].begin && t < rows[b].end) continue;
        const std::int64_t token = static_cast<std::int64_t>(b) * 70 + t;
        seq_idx[static_cast<std::size_t>(token)] = -1 - static_cast<std::int32_t>(t % 3);
        for (const Tensor* tensor : {&c.x, &c.z, &c.B, &c.C, &c.dt}) {
          const std::int64_t width = tensor->view.stride(1);
          std::fill_n(tensor->as<float>() + token * width, width, std::nanf(""));
        }
      }
    }
    c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {c.shape.batch, 70});
    const auto got = c.run(pool);
    for (std::size_t row = 0; row < batch; ++row) {
      const auto b = static_cast<std::int64_t>(row);
      const auto [begin, end] = rows[row];
      SCOPED_TRACE(::testing::Message() << "row " << b << " of " << batch);
      const auto single = alone(c, b, begin, end, b, pool);
      const std::int64_t first = b * 70 * kToken;
      const std::vector<float> zeros(70 * kToken, 0.0F);
      EXPECT_TRUE(same_bits(part(got.y, first, begin * kToken), part(zeros, 0, begin * kToken)));
      EXPECT_TRUE(same_bits(part(got.y, first + begin * kToken, (end - begin) * kToken), single.y));
      EXPECT_TRUE(same_bits(part(got.y, first + end * kToken, (70 - end) * kToken),
                            part(zeros, 0, (70 - end) * kToken)));
      EXPECT_TRUE(same_bits(part(got.final_states, b * kState, kState), single.final_states));
    }
  }
}

TEST(SsdForward, PaddingBetweenTokensIsSkipped_KnownBug5) {
  // Three sequences worth of tokens with holes; without the holes the result is the same.
  ThreadPool pool(1);
  SsdCase c({.seqlen = 90, .nheads = kHeads});
  std::vector<std::int32_t> seq_idx(90);
  for (std::size_t t = 0; t < 90; ++t) seq_idx[t] = t % 7 == 3 || t < 2 ? -1 : t < 50 ? 0 : 1;
  c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {1, 90});
  c.expect_right(c.run(pool));
}

TEST(SsdForward, SeqIdxMayBeStrided) {
  ThreadPool pool(1);
  SsdCase c({.batch = 2, .seqlen = 40, .nheads = kHeads});
  std::vector<std::int32_t> tokens_first(80);
  for (std::size_t i = 0; i < 80; ++i) tokens_first[i] = i % 2 == 0 ? i / 30 : i / 50;
  c.args.seq_idx = ConstTensorView::of(tokens_first.data(), {2, 40});
  c.args.seq_idx.strides = {1, 2};
  c.expect_right(c.run(pool));
}

}  // namespace
}  // namespace adder
