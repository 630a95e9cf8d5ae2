#include <gtest/gtest.h>

#include <cmath>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/ref.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using test::as_good_as_plain;
using test::Guarded;

// A plan that owns its arrays.
struct OwnedPlan {
  explicit OwnedPlan(const ChunkPlanArgs& args) {
    const ChunkPlanSize size = chunk_plan_size(args);
    chunks.resize(static_cast<std::size_t>(size.nchunks));
    first_chunk.resize(static_cast<std::size_t>(size.nsequences) + 1);
    plan = make_chunk_plan(args, chunks.data(), first_chunk.data());
  }
  std::vector<Chunk> chunks;
  std::vector<std::int64_t> first_chunk;
  ChunkPlan plan;
};

// "row:begin+length/sequence", with "!" where the state restarts.
std::vector<std::string> described(const ChunkPlan& plan) {
  std::vector<std::string> out;
  for (const Chunk& c : plan.chunks) {
    out.push_back(std::to_string(c.row) + ":" + std::to_string(c.begin) + "+" +
                  std::to_string(c.length) + "/" + std::to_string(c.sequence) +
                  (c.restarts ? "!" : ""));
  }
  return out;
}

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

struct Output {
  std::vector<float> dt;
  std::vector<float> dA_cumsum;  // (nheads, nchunks, 2, chunk_size)
};

Output run(const ChunkCumsumArgs& args, ThreadPool& pool) {
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
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kHeads = 3;
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t chunk_size : {1, 5, 16, 64, 100}) {
      for (std::int64_t seqlen :
           {std::int64_t{0}, std::int64_t{1}, chunk_size, 2 * chunk_size + 3}) {
        for (bool softplus : {false, true}) {
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " chunk_size " << chunk_size
                                            << " seqlen " << seqlen << " softplus " << softplus);
          test::Random random;
          const auto raw = random.normals(kBatch * seqlen * kHeads, 3.0);
          const auto A = random.uniforms(kHeads, -8, -0.1);
          const auto bias = random.normals(kHeads);
          const OwnedPlan p({.batch = kBatch, .seqlen = seqlen, .chunk_size = chunk_size});
          ChunkCumsumArgs args;
          args.dt_raw = ConstTensorView::of(raw.data(), {kBatch, seqlen, kHeads});
          args.A = ConstTensorView::of(A.data(), {kHeads});
          args.dt_bias = ConstTensorView::of(bias.data(), {kHeads});
          args.dt_options = {.softplus = softplus, .min = 0.01F, .max = 2.5F};
          args.plan = p.plan;
          const Output got = run(args, pool);
          std::vector<double> dt64;
          std::vector<float> dt32;
          std::vector<double> sums64;
          std::vector<double> sums_got;
          for (std::int64_t h = 0; h < kHeads; ++h) {
            for (const Chunk& chunk : p.chunks) {
              const std::size_t base = dt64.size();
              for (std::int64_t i = 0; i < chunk_size; ++i) {
                const bool real = i < chunk.length;
                const std::int64_t t = chunk.row * seqlen + chunk.begin + i;
                const float v = real ? raw[static_cast<std::size_t>(t * kHeads + h)] : 0.0F;
                const float b = bias[static_cast<std::size_t>(h)];
                dt64.push_back(
                    real ? ref::time_step<double>(static_cast<double>(v) + static_cast<double>(b),
                                                  args.dt_options)
                         : 0.0);
                dt32.push_back(real ? ref::time_step<float>(v + b, args.dt_options) : 0.0F);
              }
              // The sums are those of the float32 time steps, with more than float32's digits.
              const std::vector<double> dt(got.dt.begin() + static_cast<std::ptrdiff_t>(base),
                                           got.dt.end());
              sums64.resize(base + static_cast<std::size_t>(chunk_size));
              ref::chunk_cumsum<double>(std::span(dt).first(static_cast<std::size_t>(chunk_size)),
                                        static_cast<double>(A[static_cast<std::size_t>(h)]),
                                        std::span(sums64).subspan(base));
              for (std::int64_t i = 0; i < chunk_size; ++i) {
                const std::size_t at = 2 * base + static_cast<std::size_t>(i);
                sums_got.push_back(
                    static_cast<double>(got.dA_cumsum[at]) +
                    static_cast<double>(got.dA_cumsum[at + static_cast<std::size_t>(chunk_size)]));
              }
            }
          }
          EXPECT_TRUE(as_good_as_plain(got.dt, dt64, dt32));
          ASSERT_EQ(sums_got.size(), sums64.size());
          for (std::size_t i = 0; i < sums64.size(); ++i) {
            EXPECT_NEAR(sums_got[i], sums64[i], 1e-12 + 1e-13 * std::abs(sums64[i])) << i;
          }
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
  const Output out = run(args, pool);
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
  const Output out = run(args, pool);
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
    try {
      cpu::chunk_cumsum(args, pool);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
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
