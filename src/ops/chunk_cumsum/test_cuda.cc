// Chunk plans and chunk_cumsum on a CUDA device.

#include <gtest/gtest.h>

#include <limits>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/chunk_cumsum/test_cumsum.h"
#include "ops/chunk_cumsum/test_device_plan.h"
#include "ops/chunk_cumsum/test_plan.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using ChunkPlanCuda = test::OnDevice;
using ChunkCumsumCuda = test::OnDevice;
using test::CumsumOutput;
using test::CumsumProblem;
using test::described;
using test::DeviceBuffer;
using test::OwnedPlan;
using test::PlanOnDevice;
using test::PlanOnHost;
using test::same_bits;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// Index tensors brought to the device, and the plan made there in exactly the memory asked for.
class MadePlan {
 public:
  explicit MadePlan(ChunkPlanArgs args)
      : cu_seqlens_(cuda::to_device(args.cu_seqlens)),
        seq_idx_(cuda::to_device(args.seq_idx)),
        memory_(DType::u8, bytes(args, cu_seqlens_, seq_idx_)) {
    args.cu_seqlens = cu_seqlens_.view;
    args.seq_idx = seq_idx_.view;
    const TensorView memory = memory_.view({1});
    plan = cuda::make_chunk_plan(
        args, {static_cast<std::byte*>(memory.data), cuda::chunk_plan_bytes(args)}, nullptr);
  }

  PlanOnHost on_host() const {
    PlanOnHost out(plan);
    EXPECT_TRUE(memory_.intact());
    return out;
  }

  ChunkPlan plan;

 private:
  static std::int64_t bytes(ChunkPlanArgs args, const Tensor& cu_seqlens, const Tensor& seq_idx) {
    args.cu_seqlens = cu_seqlens.view;
    args.seq_idx = seq_idx.view;
    return static_cast<std::int64_t>(cuda::chunk_plan_bytes(args));
  }

  Tensor cu_seqlens_, seq_idx_;
  DeviceBuffer memory_;
};

TEST_F(ChunkPlanCuda, OfRowsEqualsTheHosts) {
  for (std::int64_t batch : {0, 1, 3}) {
    for (std::int64_t seqlen : {0, 1, 2, 3, 4, 7, 1000}) {
      const ChunkPlanArgs args{.batch = batch, .seqlen = seqlen, .chunk_size = 3};
      const PlanOnHost got = MadePlan(args).on_host();
      const OwnedPlan expected(args);
      EXPECT_EQ(described(got.plan), described(expected.plan)) << batch << " x " << seqlen;
      EXPECT_EQ(got.first_chunk, expected.first_chunk);
      EXPECT_EQ(got.chunks.size(), expected.chunks.size());
      EXPECT_TRUE(got.segments.empty());
    }
  }
}

TEST_F(ChunkPlanCuda, OfPackedSequencesEqualsTheHosts_KnownBug9) {
  test::Random random;
  for (std::int64_t nsequences : {1, 2, 31, 1023, 1024, 1025, 2600}) {
    std::vector<std::int32_t> offsets{0};
    for (std::int64_t s = 0; s < nsequences; ++s) {
      const std::int64_t length = random.integer(0, 3) == 0 ? 0 : random.integer(1, 40);
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
    }
    for (std::int64_t chunk_size : {1, 7, 64}) {
      SCOPED_TRACE(::testing::Message() << nsequences << " in chunks of " << chunk_size);
      const ChunkPlanArgs args{.batch = 1,
                               .seqlen = offsets.back(),
                               .chunk_size = chunk_size,
                               .cu_seqlens = ConstTensorView::of(offsets.data(), {nsequences + 1})};
      const PlanOnHost got = MadePlan(args).on_host();
      const OwnedPlan expected(args);
      EXPECT_EQ(described(got.plan), described(expected.plan));
      EXPECT_EQ(got.first_chunk, expected.first_chunk);
      // Chunks that are not used come last, past the last row.
      for (std::size_t c = expected.chunks.size(); c < got.chunks.size(); ++c) {
        EXPECT_EQ(got.chunks[c].length, 0);
        EXPECT_EQ(got.chunks[c].row, 1);
      }
    }
  }
}

TEST_F(ChunkPlanCuda, OfBadOffsetsStaysInsideTheTokens) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 1000000, -5, 3, 200},
        {-100, -50, -20, -10, -1},
        {500, 400, 300, 200, 100},
        {30, 40, 20, 60, 50},
        {kMost, kLeast, kMost, 0, kMost}}) {
    const MadePlan made({.batch = 1,
                         .seqlen = 200,
                         .chunk_size = 7,
                         .cu_seqlens = ConstTensorView::of(offsets.data(), {5})});
    const PlanOnHost got = made.on_host();
    // All that check_plan demands, but for the chunks that are not used.
    ChunkPlan used = got.plan;
    used.chunks = used.chunks.first(static_cast<std::size_t>(got.first_chunk.back()));
    EXPECT_NO_THROW(check_plan("op", used, 1, 200));
  }
  const std::vector<std::int32_t> offsets{30, 40, 20, 60, 50};
  const MadePlan made({.batch = 1,
                       .seqlen = 55,
                       .chunk_size = 10,
                       .cu_seqlens = ConstTensorView::of(offsets.data(), {5})});
  EXPECT_EQ(described(made.on_host().plan),
            (std::vector<std::string>{"0:30+10/0", "0:40+10/2", "0:50+5/2"}));
}

// Segment numbers token by token, from their definition.
std::vector<std::int32_t> expected_segments(const ChunkPlan& plan,
                                            const std::vector<std::int32_t>& seq_idx,
                                            std::int64_t seqlen) {
  std::vector<std::int32_t> out;
  std::int64_t sequence = -1;
  std::int32_t current = -1;
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.sequence != sequence) current = -1;
    sequence = chunk.sequence;
    std::int32_t number = 0;
    for (std::int64_t i = 0; i < plan.chunk_size; ++i) {
      const std::int32_t index =
          i < chunk.length ? seq_idx[static_cast<std::size_t>(chunk.row * seqlen + chunk.begin + i)]
                           : -1;
      if (index >= 0) {
        if (current >= 0 && index != current) ++number;
        current = index;
      }
      out.push_back(index >= 0 ? number : ~number);
    }
  }
  return out;
}

TEST_F(ChunkPlanCuda, NumbersTheSegmentsOfSeqIdx) {
  test::Random random;
  for (std::int64_t chunk_size : {1, 5, 32, 64, 100}) {
    for (int round = 0; round < 8; ++round) {
      SCOPED_TRACE(::testing::Message() << "chunk_size " << chunk_size << " round " << round);
      constexpr std::int64_t kSeqlen = 700;
      const bool packed = round % 2 == 1;
      const std::int64_t batch = packed ? 1 : 2;
      // From restarts at every token to padding over many chunks.
      const std::int64_t stretch = std::int64_t{1} << (2 * (round / 2));
      std::vector<std::int32_t> seq_idx;
      while (seq_idx.size() < static_cast<std::size_t>(batch * kSeqlen)) {
        const auto index = static_cast<std::int32_t>(random.integer(-3, 3));
        seq_idx.insert(seq_idx.end(), static_cast<std::size_t>(random.integer(1, stretch)), index);
      }
      const std::vector<std::int32_t> offsets{0, 0, 33, 200, 601, kSeqlen};
      ChunkPlanArgs args{.batch = batch, .seqlen = kSeqlen, .chunk_size = chunk_size};
      args.seq_idx = ConstTensorView::of(seq_idx.data(), {batch, kSeqlen});
      if (packed) args.cu_seqlens = ConstTensorView::of(offsets.data(), {6});
      const PlanOnHost got = MadePlan(args).on_host();
      EXPECT_EQ(got.segments, expected_segments(got.plan, seq_idx, kSeqlen));
      // The same numbers from tokens that lie apart.
      std::vector<std::int32_t> columns(seq_idx.size() * 3);
      for (std::size_t i = 0; i < static_cast<std::size_t>(batch * kSeqlen); ++i) {
        columns[i % kSeqlen * 3 * static_cast<std::size_t>(batch) + i / kSeqlen] = seq_idx[i];
      }
      args.seq_idx.data = columns.data();
      args.seq_idx.strides = {1, 3 * batch};
      EXPECT_EQ(MadePlan(args).on_host().segments, got.segments);
    }
  }
}

TEST_F(ChunkPlanCuda, NamesTheArgumentThatIsWrong) {
  const std::vector<std::int32_t> offsets{0, 4};
  const auto error_of = [&](const ChunkPlanArgs& args) {
    return test::error_of([&] { cuda::chunk_plan_bytes(args); });
  };
  EXPECT_EQ(error_of({.batch = 1, .seqlen = 4, .chunk_size = 0}),
            "chunk_plan: chunk_size is 0, expected at least 1");
  EXPECT_EQ(error_of({.batch = 1,
                      .seqlen = 4,
                      .chunk_size = 2,
                      .cu_seqlens = ConstTensorView::of(offsets.data(), {2})})
                .substr(0, 51),
            "chunk_plan: cu_seqlens is in host memory, expected ");
  std::vector<std::byte> memory(8);
  EXPECT_THROW(cuda::make_chunk_plan({.batch = 1, .seqlen = 4}, memory, nullptr), Error);
}

// A call on the device, with outputs between canaries.
CumsumOutput run(const CumsumProblem& problem, const ChunkPlan& plan, DType dtype,
                 std::int64_t misalignment = 0, bool heads_first = false) {
  const std::int64_t nheads = problem.nheads;
  const std::int64_t size = nheads * plan.nchunks() * plan.chunk_size;
  std::vector<float> raw = problem.raw;
  const std::int64_t tokens = problem.batch * problem.seqlen;
  for (std::int64_t i = 0; heads_first && i < tokens * nheads; ++i) {
    raw[static_cast<std::size_t>(i % nheads * tokens + i / nheads)] =
        problem.raw[static_cast<std::size_t>(i)];
  }
  const DeviceBuffer dt_raw(dtype, raw, misalignment);
  const DeviceBuffer A(DType::f32, problem.A, misalignment);
  const DeviceBuffer bias(DType::f32, problem.bias, misalignment);
  const DeviceBuffer dt(DType::f32, size, misalignment);
  const DeviceBuffer sums(DType::f32, 2 * size, misalignment);
  ChunkCumsumArgs args{.dt_raw = dt_raw.view({problem.batch, problem.seqlen, nheads}),
                       .A = A.view({nheads}),
                       .dt_bias = bias.view({nheads}),
                       .dt_options = problem.options,
                       .plan = plan,
                       .dt = dt.view({nheads, plan.nchunks(), plan.chunk_size}),
                       .dA_cumsum = sums.view({nheads, plan.nchunks(), 2, plan.chunk_size})};
  if (heads_first) args.dt_raw.strides = {problem.seqlen, 1, tokens};
  cuda::chunk_cumsum(args, nullptr);
  EXPECT_TRUE(dt.intact());
  EXPECT_TRUE(sums.intact());
  return {dt.values(), sums.values()};
}

CumsumProblem problem_of(std::int64_t batch, std::int64_t seqlen, std::int64_t nheads, DType dtype,
                         const DtOptions& options) {
  CumsumProblem problem(batch, seqlen, nheads, options);
  problem.raw = test::rounded(problem.raw, dtype);
  return problem;
}

TEST_F(ChunkCumsumCuda, AsGoodAsPlainLoopsInEveryDtypeAndLength) {
  for (DType dtype : kDTypes) {
    for (std::int64_t chunk_size : {1, 5, 32, 64, 100, 256}) {
      for (std::int64_t seqlen :
           {std::int64_t{0}, std::int64_t{1}, chunk_size, 2 * chunk_size + 3}) {
        for (std::int64_t nheads : {1, 31, 32, 33}) {
          const bool softplus = (seqlen + nheads) % 2 == 0;
          SCOPED_TRACE(::testing::Message()
                       << name_of(dtype) << " chunk_size " << chunk_size << " seqlen " << seqlen
                       << " heads " << nheads << " softplus " << softplus);
          const CumsumProblem problem = problem_of(
              2, seqlen, nheads, dtype, {.softplus = softplus, .min = 0.01F, .max = 2.5F});
          const OwnedPlan plan({.batch = 2, .seqlen = seqlen, .chunk_size = chunk_size});
          const PlanOnDevice device(plan.plan);
          const CumsumOutput got = run(problem, device.plan, dtype, seqlen % 3);
          problem.expect_right(plan.plan, got);
          const CumsumOutput other = run(problem, device.plan, dtype, 0, true);
          EXPECT_TRUE(same_bits(other.dA_cumsum, got.dA_cumsum));
        }
      }
    }
  }
}

TEST_F(ChunkCumsumCuda, SumsBeginAnewWithEachSegment_KnownBug9) {
  test::Random random(3);
  for (std::int64_t chunk_size : {5, 64, 200}) {
    for (std::int64_t stretch : {1, 4, 40, 150}) {
      std::vector<std::int32_t> seq_idx;
      while (seq_idx.size() < 600) {
        const auto index = static_cast<std::int32_t>(random.integer(-1, 2));
        seq_idx.insert(seq_idx.end(), static_cast<std::size_t>(random.integer(1, stretch)), index);
      }
      CumsumProblem problem = problem_of(2, 300, 3, DType::f32, {.softplus = true});
      for (std::size_t i = 0; i < problem.raw.size(); ++i) {
        if (seq_idx[i / 3] < 0) problem.raw[i] = std::nanf("");  // padding is not read
      }
      const MadePlan made({.batch = 2,
                           .seqlen = 300,
                           .chunk_size = chunk_size,
                           .cu_seqlens = {},
                           .seq_idx = ConstTensorView::of(seq_idx.data(), {2, 300})});
      problem.expect_right(made.on_host().plan, run(problem, made.plan, DType::f32));
    }
  }
}

TEST_F(ChunkCumsumCuda, AStepThatForgetsEverythingKeepsTheNextOnesExact_KnownBug8) {
  CumsumProblem problem(1, 4, 1, {});
  problem.raw = {1e30F, 0.001F, 100.0F, 0.001F};
  problem.A = {-1e8F};
  problem.bias = {0.0F};
  const OwnedPlan plan({.batch = 1, .seqlen = 4, .chunk_size = 4});
  const CumsumOutput out = run(problem, PlanOnDevice(plan.plan).plan, DType::f32);
  EXPECT_TRUE(
      same_bits(std::span(out.dA_cumsum).first(4), std::vector<float>{-1024, -2048, -3072, -4096}));
}

TEST_F(ChunkCumsumCuda, NaNShowsFromItsTokenOn) {
  CumsumProblem problem(1, 70, 2, {.softplus = true});
  problem.raw[2 * 40] = std::nanf("");
  const OwnedPlan plan({.batch = 1, .seqlen = 70, .chunk_size = 70});
  const CumsumOutput out = run(problem, PlanOnDevice(plan.plan).plan, DType::f32);
  for (std::size_t i = 0; i < 70; ++i) {
    EXPECT_EQ(std::isnan(out.dt[i]), i == 40);
    EXPECT_EQ(std::isnan(out.dA_cumsum[i]), i >= 40);
    EXPECT_FALSE(std::isnan(out.dA_cumsum[140 + i]));
  }
}

TEST_F(ChunkCumsumCuda, CapturedCallsGiveTheSameBits) {
  const CumsumProblem problem(2, 150, 40, {.softplus = true});
  const OwnedPlan plan({.batch = 2, .seqlen = 150, .chunk_size = 64});
  const PlanOnDevice device(plan.plan);
  const CumsumOutput expected = run(problem, device.plan, DType::f32);
  const DeviceBuffer raw(DType::f32, problem.raw);
  const DeviceBuffer A(DType::f32, problem.A);
  const DeviceBuffer bias(DType::f32, problem.bias);
  DeviceBuffer dt(DType::f32, 40 * 6 * 64);
  DeviceBuffer sums(DType::f32, 2 * 40 * 6 * 64);
  const cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] {
    cuda::chunk_cumsum({.dt_raw = raw.view({2, 150, 40}),
                        .A = A.view({40}),
                        .dt_bias = bias.view({40}),
                        .dt_options = problem.options,
                        .plan = device.plan,
                        .dt = dt.view({40, 6, 64}),
                        .dA_cumsum = sums.view({40, 6, 2, 64})},
                       stream);
  });
  for (int replay = 0; replay < 2; ++replay) {
    dt.poison();
    sums.poison();
    graph.launch(stream);
    EXPECT_TRUE(same_bits(dt.values(stream), expected.dt));
    EXPECT_TRUE(same_bits(sums.values(stream), expected.dA_cumsum));
  }
}

// ---- what needs no device -----------------------------------------------------------------------

TEST(ChunkCumsumCudaErrors, NameTheArgumentThatIsWrong) {
  static std::byte memory[64];
  const OwnedPlan host({.batch = 1, .seqlen = 4, .chunk_size = 4});
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  ChunkCumsumArgs good;
  good.dt_raw = view(DType::bf16, {1, 4, 2});
  good.A = view(DType::f32, {2});
  good.plan = host.plan;
  good.plan.device = {DeviceType::cuda, 0};
  good.dt = view(DType::f32, {2, 1, 4});
  good.dA_cumsum = view(DType::f32, {2, 1, 2, 4});
  const auto error_of = [&](auto&& change) {
    ChunkCumsumArgs args = good;
    change(args);
    return test::error_of([&] { cuda::chunk_cumsum(args, nullptr); });
  };
  EXPECT_EQ(error_of([](auto& a) { a.plan.device = {}; }),
            "chunk_cumsum: the plan is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.A.device = {}; }),
            "chunk_cumsum: A is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.dt_raw.dtype = DType::f64; }),
            "chunk_cumsum: dt_raw has dtype f64, expected f32 or bf16 or f16");
  EXPECT_EQ(error_of([](auto& a) { a.dt.dtype = DType::bf16; }),
            "chunk_cumsum: dt has dtype bf16, expected f32");
  static const std::int32_t segments[3] = {};
  EXPECT_EQ(error_of([](auto& a) { a.plan.segments = segments; }),
            "chunk_cumsum: the plan has 3 segment numbers, expected none or 4");
  ThreadPool pool(1);
  EXPECT_THROW(cpu::chunk_cumsum(good, pool), Error);
}

}  // namespace
}  // namespace adder
