// Several sequences in one call: batches, packed sequences, padding.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/cpu_tier.h"
#include "ops/selective_scan/selective_scan.h"
#include "ops/selective_scan/test_problem.h"
#include "tests/support/compare.h"
#include "tests/support/pooled.h"

namespace adder {
namespace {

using test::append;
using test::compare;
using test::Pooled;
using test::ScanProblem;
using test::zeros;

// Known bugs 5, 9 and 13: sequences of odd lengths, some empty, in one call.
TEST(SelectiveScan, PackedSequencesEqualSingleOnes) {
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (int nthreads : {1, 3}) {
      ThreadPool pool(nthreads);
      ScanProblem packed{.seqlen = 83, .d_inner = 37};
      packed.cu_seqlens = {0, 1, 1, 4, 37, 37, 70, 83};
      packed.fill();
      const ScanProblem start = packed;
      const auto y = packed.run(pool);
      std::vector<float> expected_y;
      std::vector<float> expected_states;
      for (std::int64_t s = 0; s < start.nsequences(); ++s) {
        const auto at = static_cast<std::size_t>(s);
        ScanProblem one =
            start.part(start.cu_seqlens[at], start.cu_seqlens[at + 1], start.state_of(s));
        append(expected_y, one.run(pool));
        append(expected_states, one.states);
      }
      EXPECT_TRUE(test::same_bits(y, expected_y));
      EXPECT_TRUE(test::same_bits(packed.states, expected_states));
    }
  }
}

TEST(SelectiveScan, ABatchRowEqualsTheSameRowAlone) {
  ThreadPool pool(3);
  const ScanProblem start = ScanProblem{.batch = 4, .seqlen = 21, .d_inner = 40}.fill();
  ScanProblem batch = start;
  const auto y = batch.run(pool);
  for (std::int64_t b = 0; b < 4; ++b) {
    ScanProblem one = start.part(b * 21, (b + 1) * 21, start.state_of(b));
    EXPECT_TRUE(test::same_bits(
        one.run(pool), std::span(y).subspan(static_cast<std::size_t>(b * 21 * 40), 21 * 40)));
    EXPECT_TRUE(test::same_bits(one.states, batch.state_of(b)));
  }
}

TEST(SelectiveScan, SeqIdxAsGoodAsPlainLoops) {
  test::Random random(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    ThreadPool pool(2);
    Pooled y;
    Pooled states;
    for (int round = 0; round < 8; ++round) {
      ScanProblem p{.batch = 1 + round % 2, .seqlen = 90, .d_inner = 19, .dstate = 6};
      if (p.batch == 1) p.cu_seqlens = {0, 30, 30, 90};
      p.fill();
      std::int32_t index = 0;
      for (std::int64_t t = 0; t < p.batch * p.seqlen; ++t) {
        if (random.integer(0, 9) == 0) index = static_cast<std::int32_t>(random.integer(0, 3));
        p.seq_idx.push_back(random.integer(0, 3) == 0 ? -1 : index);
      }
      compare(p, pool, y, states, fmt::format("{} round {}", name_of(tier), round));
    }
    EXPECT_TRUE(y.as_good_as_plain());
    EXPECT_TRUE(states.as_good_as_plain());
  }
}

// Known bug 5: padding leaks into the state. A ragged batch, and a padded batch of one.
TEST(SelectiveScan, PaddingOnEitherSideChangesNothing) {
  ThreadPool pool(2);
  constexpr std::int64_t kInner = 21;
  const ScanProblem plain = ScanProblem{.seqlen = 6, .d_inner = kInner}.fill();
  ScanProblem pass = plain;
  const auto expected = pass.run(pool);
  for (std::int64_t left : {0, 1, 5, 40}) {
    for (std::int64_t right : {0, 1, 5, 40}) {
      SCOPED_TRACE(::testing::Message() << "left " << left << " right " << right);
      ScanProblem padded = plain;
      padded.seqlen = left + 6 + right;
      const auto pad = [&](std::vector<float>& v, std::int64_t width) {
        v.insert(v.begin(), static_cast<std::size_t>(left * width), 99.0F);
        v.insert(v.end(), static_cast<std::size_t>(right * width), 99.0F);
      };
      pad(padded.x, kInner);
      pad(padded.dt, kInner);
      pad(padded.z, kInner);
      pad(padded.B, 16);
      pad(padded.C, 16);
      padded.seq_idx.assign(static_cast<std::size_t>(padded.seqlen), -1);
      std::fill_n(padded.seq_idx.begin() + left, 6, 3);
      std::vector<float> wanted = zeros(left * kInner);
      append(wanted, expected);
      append(wanted, zeros(right * kInner));
      EXPECT_TRUE(test::same_bits(padded.run(pool), wanted));
      EXPECT_TRUE(test::same_bits(padded.states, pass.states));
    }
  }
}

TEST(SelectiveScan, AChangeOfSeqIdxStartsANewSequence) {  // known bug 9
  ThreadPool pool(2);
  constexpr std::int64_t kInner = 18;
  const std::vector<std::int32_t> lengths{33, 1, 2, 40, 3};
  ScanProblem packed = ScanProblem{.seqlen = 79, .d_inner = kInner}.fill();
  const ScanProblem start = packed;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    packed.seq_idx.insert(packed.seq_idx.end(), static_cast<std::size_t>(lengths[s]),
                          static_cast<std::int32_t>(s));
  }
  const auto y = packed.run(pool);
  std::vector<float> expected;
  std::vector<float> state = start.states;  // continues into the first run
  std::vector<float> last;
  std::int64_t begin = 0;
  for (std::int32_t length : lengths) {
    ScanProblem one = start.part(begin, begin + length, state);
    append(expected, one.run(pool));
    begin += length;
    state = zeros(kInner * 16);
    last = one.states;
  }
  EXPECT_TRUE(test::same_bits(y, expected));
  EXPECT_TRUE(test::same_bits(packed.states, last));
}

}  // namespace
}  // namespace adder
