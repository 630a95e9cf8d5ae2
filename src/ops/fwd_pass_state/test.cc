#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "ops/fwd_pass_state/test_reference.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"

namespace adder {
namespace {

using test::as_good_as_plain;
using test::ChunkInputs;
using test::ChunkShape;
using test::ChunkStates;
using test::Guarded;
using test::reference_states;
using test::to_floats;

void expect_right(const ChunkInputs& in, const std::vector<float>& initial_states,
                  ThreadPool& pool) {
  const ChunkShape& s = in.shape;
  const std::int64_t nchunks = in.plan.nchunks();
  const std::int64_t nsequences = in.plan.nsequences();
  const std::int64_t columns = padded_headdim(s.headdim);
  Guarded<float> states(nchunks * s.nheads * s.dstate * columns);
  Guarded<float> final_states(nsequences * s.nheads * s.headdim * s.dstate);
  FwdPassStateArgs args{
      .x = in.x.view,
      .B = in.B.view,
      .dt = in.dt.view,
      .dA_cumsum = in.dA_cumsum.view,
      .initial_states = {},
      .plan = in.plan,
      .states = states.view({nchunks, s.nheads, s.dstate, columns}),
      .final_states = final_states.view({nsequences, s.nheads, s.headdim, s.dstate})};
  if (!initial_states.empty()) {
    final_states.fill(initial_states);  // updated in place
    args.initial_states = args.final_states;
  }
  Guarded<unsigned char> workspace(
      static_cast<std::int64_t>(cpu::fwd_pass_state_workspace_bytes(args, pool.nthreads())));
  cpu::fwd_pass_state(args, std::as_writable_bytes(workspace.span()), pool);
  EXPECT_TRUE(states.intact());
  EXPECT_TRUE(final_states.intact());
  EXPECT_TRUE(workspace.intact());
  const ChunkStates truth = reference_states<double>(in, initial_states);
  const ChunkStates plain = reference_states<float>(in, initial_states);
  EXPECT_TRUE(as_good_as_plain(states.span(), truth.states, to_floats(plain.states)));
  EXPECT_TRUE(
      as_good_as_plain(final_states.span(), truth.final_states, to_floats(plain.final_states)));
}

TEST(FwdPassState, AsGoodAsPlainLoopsInEveryTierAndSize) {
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (std::int64_t headdim : {1, 5, 16, 80}) {
      for (std::int64_t dstate : {1, 7, 16, 100}) {
        for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " headdim " << headdim << " dstate "
                                            << dstate << " " << name_of(dtype));
          const ChunkInputs in({.headdim = headdim, .dstate = dstate, .dtype = dtype});
          expect_right(in, test::Random(1).uniforms(2 * 4 * headdim * dstate, -1, 1), pool);
        }
      }
    }
  }
}

TEST(FwdPassState, EveryLengthAroundTheChunk) {
  ThreadPool pool(1);
  for (std::int64_t seqlen : {0, 1, 7, 8, 9, 19, 45}) {
    SCOPED_TRACE(seqlen);
    expect_right(ChunkInputs({.seqlen = seqlen}), {}, pool);
  }
}

TEST(FwdPassState, RestartsAndPackedSequences) {
  ThreadPool pool(1);
  const std::vector<std::int32_t> offsets{0, 11, 11, 20};
  std::vector<std::int32_t> seq_idx(20, 1);
  seq_idx[5] = -1;
  seq_idx[6] = 2;
  const ChunkInputs in({.batch = 1}, {.cu_seqlens = ConstTensorView::of(offsets.data(), {4}),
                                      .seq_idx = ConstTensorView::of(seq_idx.data(), {1, 20})});
  expect_right(in, test::Random(1).uniforms(3 * 4 * 16 * 16, -1, 1), pool);
}

TEST(FwdPassState, NamesTheArgumentThatIsWrong) {
  ThreadPool pool(1);
  const ChunkInputs in({});
  std::vector<float> states(6 * 4 * 16 * 16);
  std::vector<float> final_states(2 * 4 * 16 * 16);
  const FwdPassStateArgs good{
      .x = in.x.view,
      .B = in.B.view,
      .dt = in.dt.view,
      .dA_cumsum = in.dA_cumsum.view,
      .initial_states = ConstTensorView::of(final_states.data(), {2, 4, 16, 16}),
      .plan = in.plan,
      .states = TensorView::of(states.data(), {6, 4, 16, 16}),
      .final_states = TensorView::of(final_states.data(), {2, 4, 16, 16})};
  std::vector<std::byte> workspace(cpu::fwd_pass_state_workspace_bytes(good, 1));
  const auto error_of = [&](auto&& change) {
    FwdPassStateArgs args = good;
    change(args);
    return test::error_of([&] { cpu::fwd_pass_state(args, workspace, pool); });
  };
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.states = a.states.narrow(0, 0, 5); }),
            "fwd_pass_state: states has shape (5, 4, 16, 16), expected (6, 4, 16, 16)");
  const auto rejects = [&](auto&& change) { return error_of(change) != "no error"; };
  EXPECT_TRUE(rejects([](auto& a) { a.x.dtype = DType::i32; }));
  EXPECT_TRUE(rejects([](auto& a) { a.x.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.B = a.B.narrow(2, 0, 0); }));
  EXPECT_TRUE(rejects([](auto& a) { a.B.dtype = DType::bf16; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt = a.dt.narrow(0, 0, 2); }));
  EXPECT_TRUE(rejects([](auto& a) { a.dA_cumsum = a.dA_cumsum.narrow(2, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.initial_states = a.initial_states.narrow(0, 0, 1); }));
  EXPECT_TRUE(rejects([](auto& a) { a.final_states.strides[3] = 2; }));
  EXPECT_TRUE(rejects([](auto& a) { a.plan.chunk_size = 4; }));
  workspace.resize(16);
  EXPECT_TRUE(rejects([](auto&) {}));
}

}  // namespace
}  // namespace adder
