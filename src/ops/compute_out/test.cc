#include <gtest/gtest.h>

#include <cmath>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "core/half.h"
#include "ops/compute_out/test_reference.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"

namespace adder {
namespace {

using test::as_good_as_plain;
using test::ChunkInputs;
using test::ChunkShape;
using test::Guarded;
using test::random_states;
using test::reference_outputs;

ComputeOutArgs arguments(const ChunkInputs& in, const Tensor& states) {
  return {.x = in.x.view,
          .B = in.B.view,
          .C = in.C.view,
          .dt = in.dt.view,
          .dA_cumsum = in.dA_cumsum.view,
          .states = states.view,
          .D = in.D.view,
          .z = in.z.view,
          .plan = in.plan,
          .y = {}};
}

template <typename T>
std::vector<float> run(const ChunkInputs& in, const Tensor& states, ThreadPool& pool) {
  const ChunkShape& s = in.shape;
  Guarded<T> y(in.x.view.numel());
  ComputeOutArgs args = arguments(in, states);
  args.y = y.view({s.batch, s.seqlen, s.nheads, s.headdim});
  Guarded<unsigned char> workspace(
      static_cast<std::int64_t>(cpu::compute_out_workspace_bytes(args, pool.nthreads())));
  cpu::compute_out(args, std::as_writable_bytes(workspace.span()), pool);
  EXPECT_TRUE(y.intact());
  EXPECT_TRUE(workspace.intact());
  std::vector<float> out;
  for (T v : y.span()) out.push_back(to_float(v));
  return out;
}

template <typename T>
void expect_right(const ChunkInputs& in, ThreadPool& pool) {
  const Tensor states = random_states(in);
  auto plain = reference_outputs<float>(in, states);
  for (float& v : plain) v = to_float(from_float<T>(v));
  EXPECT_TRUE(
      as_good_as_plain(run<T>(in, states, pool), reference_outputs<double>(in, states), plain));
}

TEST(ComputeOut, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t headdim : {1, 5, 16, 80}) {
      for (std::int64_t dstate : {1, 7, 16, 100}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(tier) << " headdim " << headdim << " dstate " << dstate);
        ChunkShape s{.headdim = headdim, .dstate = dstate};
        expect_right<float>(ChunkInputs(s), pool);
        s.dtype = DType::bf16;
        expect_right<bf16>(ChunkInputs(s), pool);
        s.dtype = DType::f16;
        expect_right<f16>(ChunkInputs(s), pool);
      }
    }
  }
}

TEST(ComputeOut, EveryLengthAroundTheChunk) {
  ThreadPool pool(1);
  for (std::int64_t seqlen : {0, 1, 7, 8, 9, 19, 45}) {
    SCOPED_TRACE(seqlen);
    expect_right<float>(ChunkInputs({.seqlen = seqlen}), pool);
  }
}

TEST(ComputeOut, LongChunks) {
  ThreadPool pool(1);
  expect_right<float>(ChunkInputs({.batch = 1, .seqlen = 150, .chunk_size = 100}), pool);
}

TEST(ComputeOut, PaddingGetsZeros) {
  ThreadPool pool(2);
  std::vector<std::int32_t> seq_idx(40, -1);
  for (std::size_t t = 3; t < 15; ++t) seq_idx[t] = 0;
  const ChunkInputs in({}, {.seq_idx = ConstTensorView::of(seq_idx.data(), {2, 20})});
  expect_right<float>(in, pool);  // the reference leaves zeros there
}

TEST(ComputeOut, NothingComesFromAboveTheDiagonal) {
  ThreadPool pool(1);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    const ChunkInputs in({.batch = 1, .seqlen = 20, .chunk_size = 20});
    const Tensor states = random_states(in);
    const auto before = run<float>(in, states, pool);
    const std::int64_t width = 4 * 16;
    for (std::int64_t t = 19; t > 0; --t) {
      std::fill_n(in.x.as<float>() + t * width, width, INFINITY);
      std::fill_n(in.B.as<float>() + t * 32, 32, std::nanf(""));
      const auto after = run<float>(in, states, pool);
      const auto size = static_cast<std::size_t>(t * width);
      EXPECT_TRUE(test::same_bits(std::span(after).first(size), std::span(before).first(size)));
    }
  }
}

TEST(ComputeOut, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  const ChunkInputs in({});
  const Tensor states = random_states(in);
  std::vector<float> y(static_cast<std::size_t>(in.x.view.numel()));
  ComputeOutArgs good = arguments(in, states);
  good.y = TensorView::of(y.data(), {2, 20, 4, 16});
  std::vector<std::byte> workspace(cpu::compute_out_workspace_bytes(good, 1));
  const auto error_of = [&](auto&& change) {
    ComputeOutArgs args = good;
    change(args);
    return test::error_of([&] { cpu::compute_out(args, workspace, pool); });
  };
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.C = a.C.narrow(2, 0, 1); }),
            "compute_out: C has shape (2, 20, 1, 16), expected (2, 20, 2, 16)");
  const auto rejects = [&](auto&& change) { return error_of(change) != "no error"; };
  EXPECT_TRUE(rejects([](auto& a) { a.x = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.dtype = DType::i32; }));
  EXPECT_TRUE(rejects([](auto& a) { a.B = a.B.narrow(2, 0, 0); }));
  EXPECT_TRUE(rejects([](auto& a) { a.B.dtype = DType::f16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.C.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt = a.dt.narrow(0, 0, 2); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dA_cumsum = a.dA_cumsum.narrow(2, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.states = a.states.narrow(3, 0, 15); }));
  EXPECT_TRUE(rejects([](auto& a) { a.D = a.D.narrow(1, 0, 15); }));
  EXPECT_TRUE(rejects([](auto& a) { a.z = a.z.narrow(0, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.y.dtype = DType::f16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.plan.chunk_size = 4; }));
  workspace.resize(16);
  EXPECT_TRUE(rejects([](auto&) {}));
}

}  // namespace
}  // namespace adder
