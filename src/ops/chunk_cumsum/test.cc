#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/chunk_cumsum/test_cumsum.h"
#include "ops/chunk_cumsum/test_plan.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"

namespace adder {
namespace {

using test::CumsumOutput;
using test::CumsumProblem;
using test::described;
using test::Guarded;
using test::OwnedPlan;

using Strings = std::vector<std::string>;

TEST(ChunkPlan, CutsEveryRow) {
  const OwnedPlan p({.batch = 2, .seqlen = 7, .chunk_size = 3});
  EXPECT_EQ(described(p.plan),
            (Strings{"0:0+3/0", "0:3+3/0", "0:6+1/0", "1:0+3/1", "1:3+3/1", "1:6+1/1"}));
  EXPECT_EQ(p.first_chunk, (std::vector<std::int64_t>{0, 3, 6}));
  EXPECT_EQ(OwnedPlan({.batch = 2, .seqlen = 0, .chunk_size = 3}).first_chunk,
            (std::vector<std::int64_t>{0, 0, 0}));
}

TEST(ChunkPlan, StartsAnewInEveryPackedSequence_KnownBug9) {
  const std::vector<std::int32_t> offsets{0, 4, 4, 5, 9};
  const OwnedPlan p({.batch = 1,
                     .seqlen = 9,
                     .chunk_size = 3,
                     .cu_seqlens = ConstTensorView::of(offsets.data(), {5})});
  EXPECT_EQ(described(p.plan), (Strings{"0:0+3/0", "0:3+1/0", "0:4+1/2", "0:5+3/3", "0:8+1/3"}));
  EXPECT_EQ(p.first_chunk, (std::vector<std::int64_t>{0, 2, 2, 3, 5}));
}

TEST(ChunkPlan, RestartsWhereSeqIdxChangesAndSkipsPadding) {
  const std::vector<std::int32_t> seq_idx{-1, -5, 2, 2, 2, 2, -1, 2, 3, 3, 2, -1};
  const OwnedPlan p({.batch = 1,
                     .seqlen = 12,
                     .chunk_size = 3,
                     .cu_seqlens = {},
                     .seq_idx = ConstTensorView::of(seq_idx.data(), {1, 12})});
  EXPECT_EQ(described(p.plan), (Strings{"0:2+3/0", "0:5+1/0", "0:7+1/0", "0:8+2/0!", "0:10+1/0!"}));
}

TEST(ChunkPlan, ChecksWhatItIsGiven) {
  OwnedPlan p({.batch = 1, .seqlen = 7, .chunk_size = 3});
  EXPECT_NO_THROW(check_plan("op", p.plan, 1, 7));
  EXPECT_THROW(check_plan("op", p.plan, 1, 6), Error);
  EXPECT_THROW(check_plan("op", p.plan, 0, 7), Error);
  const auto rejects = [&](auto&& change) {
    OwnedPlan changed({.batch = 1, .seqlen = 7, .chunk_size = 3});
    change(changed);
    EXPECT_THROW(check_plan("op", changed.plan, 1, 7), Error);
  };
  rejects([](OwnedPlan& c) { c.plan.chunk_size = 2; });
  rejects([](OwnedPlan& c) { c.chunks[1].begin = 2; });  // overlaps the first
  rejects([](OwnedPlan& c) { c.chunks[1].begin = -1; });
  rejects([](OwnedPlan& c) { c.chunks[1].length = 0; });
  rejects([](OwnedPlan& c) { c.chunks[1].sequence = 1; });
  rejects([](OwnedPlan& c) { c.first_chunk[1] = 2; });
  rejects([](OwnedPlan& c) { c.plan.first_chunk = {}; });
}

CumsumOutput run(const ChunkCumsumArgs& args, ThreadPool& pool) {
  const std::int64_t nheads = args.dt_raw.dim(2);
  const std::int64_t size = nheads * args.plan.nchunks() * args.plan.chunk_size;
  Guarded<float> dt(size);
  Guarded<float> sums(2 * size);
  ChunkCumsumArgs call = args;
  call.dt = dt.view({nheads, args.plan.nchunks(), args.plan.chunk_size});
  call.dA_cumsum = sums.view({nheads, args.plan.nchunks(), 2, args.plan.chunk_size});
  cpu::chunk_cumsum(call, pool);
  EXPECT_TRUE(dt.intact());
  EXPECT_TRUE(sums.intact());
  return {{dt.span().begin(), dt.span().end()}, {sums.span().begin(), sums.span().end()}};
}

TEST(ChunkCumsum, AsGoodAsPlainLoopsInEveryTierAndLength) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t chunk_size : {1, 5, 16, 64, 100}) {
      for (std::int64_t seqlen :
           {std::int64_t{0}, std::int64_t{1}, chunk_size, 2 * chunk_size + 3}) {
        for (bool softplus : {false, true}) {
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " chunk_size " << chunk_size
                                            << " seqlen " << seqlen << " softplus " << softplus);
          const CumsumProblem problem(2, seqlen, 3,
                                      {.softplus = softplus, .min = 0.01F, .max = 2.5F});
          const OwnedPlan p({.batch = 2, .seqlen = seqlen, .chunk_size = chunk_size});
          ChunkCumsumArgs args;
          args.dt_raw = ConstTensorView::of(problem.raw.data(), {2, seqlen, 3});
          args.A = ConstTensorView::of(problem.A.data(), {3});
          args.dt_bias = ConstTensorView::of(problem.bias.data(), {3});
          args.dt_options = problem.options;
          args.plan = p.plan;
          problem.expect_right(p.plan, run(args, pool));
        }
      }
    }
  }
}

TEST(ChunkCumsum, PadsAfterSoftplus) {
  // A raw value of zero would give softplus(0) = 0.69.
  ThreadPool pool(1);
  const std::vector<float> raw{1, 2};
  const float A = -1;
  const OwnedPlan p({.batch = 1, .seqlen = 2, .chunk_size = 4});
  ChunkCumsumArgs args;
  args.dt_raw = ConstTensorView::of(raw.data(), {1, 2, 1});
  args.A = ConstTensorView::of(&A, {1});
  args.dt_options.softplus = true;
  args.dt_options.min = 0.001F;
  args.plan = p.plan;
  const CumsumOutput out = run(args, pool);
  EXPECT_EQ(out.dt[2], 0.0F);
  EXPECT_EQ(out.dt[3], 0.0F);
  EXPECT_EQ(out.dA_cumsum[2], out.dA_cumsum[1]);
  EXPECT_EQ(out.dA_cumsum[7], out.dA_cumsum[5]);
}

TEST(ChunkCumsum, AStepThatForgetsEverythingKeepsTheNextOnesExact_KnownBug8) {
  ThreadPool pool(1);
  const std::vector<float> raw{1e30F, 0.001F, 100.0F, 0.001F};
  const float A = -1e8F;
  const OwnedPlan p({.batch = 1, .seqlen = 4, .chunk_size = 4});
  ChunkCumsumArgs args;
  args.dt_raw = ConstTensorView::of(raw.data(), {1, 4, 1});
  args.A = ConstTensorView::of(&A, {1});
  args.plan = p.plan;
  const CumsumOutput out = run(args, pool);
  EXPECT_EQ(out.dA_cumsum[0], -1024.0F);
  EXPECT_EQ(out.dA_cumsum[1], -2048.0F);
  EXPECT_EQ(out.dA_cumsum[3], -4096.0F);
}

TEST(ChunkCumsum, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  std::vector<float> data(64, -1.0F);
  const OwnedPlan p({.batch = 1, .seqlen = 4, .chunk_size = 4});
  ChunkCumsumArgs good;
  good.dt_raw = ConstTensorView::of(data.data(), {1, 4, 2});
  good.A = ConstTensorView::of(data.data(), {2});
  good.dt_bias = good.A;
  good.plan = p.plan;
  good.dt = TensorView::of(data.data() + 8, {2, 1, 4});
  good.dA_cumsum = TensorView::of(data.data() + 16, {2, 1, 2, 4});
  const auto error_of = [&](auto&& change) {
    ChunkCumsumArgs args = good;
    change(args);
    return test::error_of([&] { cpu::chunk_cumsum(args, pool); });
  };
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.A = a.A.narrow(0, 0, 1); }),
            "chunk_cumsum: A has shape (1), expected (2)");
  EXPECT_EQ(error_of([](auto& a) { a.dt_options.min = 1, a.dt_options.max = 0; }),
            "chunk_cumsum: the limits of dt are 1 and 0, expected 0 <= dt_min <= dt_max");
  const auto rejects = [&](auto&& change) { return error_of(change) != "no error"; };
  EXPECT_TRUE(rejects([](auto& a) { a.dt_raw = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_raw.dtype = DType::bf16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_raw = a.dt_raw.narrow(1, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_bias = a.dt_bias.narrow(0, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt = a.dt.narrow(2, 0, 3); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dA_cumsum = a.dA_cumsum.narrow(2, 0, 1); }));
  const std::vector<float> growing{-1.0F, 1.0F};
  EXPECT_TRUE(rejects([&](auto& a) { a.A = ConstTensorView::of(growing.data(), {2}); }));
}

}  // namespace
}  // namespace adder
