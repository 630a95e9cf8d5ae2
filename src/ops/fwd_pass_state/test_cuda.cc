// fwd_pass_state on a CUDA device.

#include <gtest/gtest.h>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/fwd_pass_state/test_device.h"
#include "ops/fwd_pass_state/test_reference.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using FwdPassStateCuda = test::OnDevice;
using test::as_good_as_plain;
using test::ChunkInputs;
using test::ChunkInputsOnDevice;
using test::ChunkShape;
using test::ChunkStates;
using test::DeviceBuffer;
using test::reference_states;
using test::same_bits;
using test::to_floats;
using test::with_senseless_plans;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

struct Output {
  std::vector<float> states;
  std::vector<float> final_states;
};

// One problem on the device. Initial states are updated in place.
class Call {
 public:
  explicit Call(const ChunkInputs& in, const std::vector<float>& initial_states,
                std::int64_t misalignment = 0)
      : in_(in, misalignment),
        initial_(initial_states),
        states_(DType::f32,
                in.plan.nchunks() * in.shape.nheads * in.shape.dstate *
                    padded_headdim(in.shape.headdim),
                misalignment),
        final_(DType::f32,
               in.plan.nsequences() * in.shape.nheads * in.shape.headdim * in.shape.dstate,
               misalignment) {
    const ChunkShape& s = in.shape;
    args = {
        .x = in_.x.view,
        .B = in_.B.view,
        .dt = in_.dt.view,
        .dA_cumsum = in_.dA_cumsum.view,
        .initial_states = {},
        .plan = in_.plan.plan,
        .states = states_.view({in.plan.nchunks(), s.nheads, s.dstate, padded_headdim(s.headdim)}),
        .final_states = final_.view({in.plan.nsequences(), s.nheads, s.headdim, s.dstate})};
    if (!initial_.empty()) args.initial_states = args.final_states;
    reset();
  }

  void reset() {
    states_.poison();
    final_.poison();
    if (!initial_.empty()) final_.fill(initial_);
  }
  Output run() {
    cuda::fwd_pass_state(args, nullptr);
    return result();
  }
  Output result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(states_.intact(stream));
    EXPECT_TRUE(final_.intact(stream));
    return {states_.values(stream), final_.values(stream)};
  }

  FwdPassStateArgs args;

 private:
  ChunkInputsOnDevice in_;
  std::vector<float> initial_;
  DeviceBuffer states_, final_;
};

std::vector<float> initial_states(const ChunkInputs& in) {
  const ChunkShape& s = in.shape;
  return test::Random(1).uniforms(in.plan.nsequences() * s.nheads * s.headdim * s.dstate, -1, 1);
}

void expect_right(const ChunkInputs& in, const std::vector<float>& initial,
                  std::int64_t misalignment = 0) {
  const Output got = Call(in, initial, misalignment).run();
  const ChunkStates truth = reference_states<double>(in, initial);
  const ChunkStates plain =
      reference_states<float, double>(in, initial, ref::DigitsOf{in.shape.dtype});
  EXPECT_TRUE(as_good_as_plain(got.states, truth.states, to_floats(plain.states)));
  EXPECT_TRUE(
      as_good_as_plain(got.final_states, truth.final_states, to_floats(plain.final_states)));
}

// Few chains: small tiles.
TEST_F(FwdPassStateCuda, AsGoodAsPlainLoopsInEveryDtypeAndSize) {
  for (DType dtype : kDTypes) {
    for (std::int64_t headdim : {1, 5, 16, 33, 80}) {
      for (std::int64_t dstate : {1, 7, 32, 100}) {
        for (std::int64_t misalignment : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << name_of(dtype) << " headdim " << headdim << " dstate " << dstate
                       << " misalignment " << misalignment);
          const ChunkInputs in({.headdim = headdim, .dstate = dstate, .dtype = dtype});
          expect_right(in, initial_states(in), misalignment);
        }
      }
    }
  }
}

// Chains for every multiprocessor: large tiles, of which parts are not there.
TEST_F(FwdPassStateCuda, ManyChainsAreAsGoodAsPlainLoops) {
  const int multiprocessors = cuda::properties(cuda::current_device()).multiprocessors;
  for (DType dtype : kDTypes) {
    for (std::int64_t headdim : {13, 64, 80}) {
      for (std::int64_t dstate : {13, 64, 100}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " headdim " << headdim << " dstate " << dstate);
        const std::int64_t tiles = (headdim / 65 + 1) * (dstate / 65 + 1);
        const ChunkInputs in({.batch = 1,
                              .seqlen = 13,
                              .nheads = (multiprocessors / tiles + 2) / 2 * 2,
                              .headdim = headdim,
                              .dstate = dstate,
                              .dtype = dtype});
        expect_right(in, initial_states(in));
      }
    }
  }
}

TEST_F(FwdPassStateCuda, EveryLengthAroundTheChunkAndTheTile) {
  for (DType dtype : kDTypes) {
    for (std::int64_t chunk_size : {8, 64, 150}) {
      for (std::int64_t seqlen : {std::int64_t{0}, std::int64_t{1}, chunk_size - 1, chunk_size,
                                  chunk_size + 1, 3 * chunk_size - 3}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " seqlen " << seqlen << " chunk_size " << chunk_size);
        expect_right(ChunkInputs({.seqlen = seqlen,
                                  .nheads = 2,
                                  .ngroups = 1,
                                  .chunk_size = chunk_size,
                                  .dtype = dtype}),
                     {});
      }
    }
  }
}

// As good as plain loops whose factors have the digits of tf32, and not as those with all of them.
TEST_F(FwdPassStateCuda, Tf32WhereItIsAllowed) {
  const ChunkInputs in({.seqlen = 150, .headdim = 64, .dstate = 100, .chunk_size = 64});
  const std::vector<float> initial = initial_states(in);
  Call call(in, initial);
  call.args.allow_tf32 = true;
  const Output got = call.run();
  const ChunkStates truth = reference_states<double>(in, initial);
  const ChunkStates coarse =
      reference_states<float, double>(test::tf32_of(in), initial, ref::DigitsOf{DType::f16});
  EXPECT_TRUE(as_good_as_plain(got.states, truth.states, to_floats(coarse.states)));
  EXPECT_TRUE(
      as_good_as_plain(got.final_states, truth.final_states, to_floats(coarse.final_states)));
  const ChunkStates plain = reference_states<float, double>(in, initial);
  EXPECT_FALSE(
      as_good_as_plain(got.final_states, truth.final_states, to_floats(plain.final_states)));
}

TEST_F(FwdPassStateCuda, AllowingTf32ChangesNothingFor16Bits) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    const ChunkInputs in({.dtype = dtype});
    const Output expected = Call(in, {}).run();
    Call call(in, {});
    call.args.allow_tf32 = true;
    const Output got = call.run();
    EXPECT_TRUE(same_bits(got.states, expected.states));
    EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
  }
}

TEST_F(FwdPassStateCuda, RestartsAndPackedSequences) {
  const std::vector<std::int32_t> offsets{0, 11, 11, 20};
  std::vector<std::int32_t> seq_idx(20, 1);
  seq_idx[5] = -1;
  seq_idx[6] = 2;
  const ChunkInputs in({.batch = 1}, {.cu_seqlens = ConstTensorView::of(offsets.data(), {4}),
                                      .seq_idx = ConstTensorView::of(seq_idx.data(), {1, 20})});
  expect_right(in, initial_states(in));
  expect_right(in, {});
}

TEST_F(FwdPassStateCuda, RowsMayLieApart) {
  const ChunkInputs in({});
  Call packed(in, initial_states(in));
  const Output expected = packed.run();
  for (std::int64_t gap : {3, 16}) {
    std::vector<float> x(2 * 20 * static_cast<std::size_t>(64 + gap), NAN);
    for (std::size_t i = 0; i < 2 * 20 * 64; ++i) {
      x[i / 64 * static_cast<std::size_t>(64 + gap) + i % 64] = in.x.as<float>()[i];
    }
    const DeviceBuffer rows(DType::f32, x);
    Call call(in, initial_states(in));
    call.args.x = ConstTensorView(rows.view({2, 20, 64 + gap}).narrow(2, 0, 64)).split_last(4);
    const Output got = call.run();
    EXPECT_TRUE(same_bits(got.states, expected.states));
    EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
  }
}

TEST_F(FwdPassStateCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  const ChunkInputs in(
      {.seqlen = 150, .headdim = 64, .dstate = 64, .chunk_size = 64, .dtype = DType::bf16});
  Call call(in, initial_states(in));
  const Output expected = call.run();
  call.reset();
  const Output again = call.run();
  EXPECT_TRUE(same_bits(again.states, expected.states));
  EXPECT_TRUE(same_bits(again.final_states, expected.final_states));
  const cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { cuda::fwd_pass_state(call.args, stream); });
  for (int replay = 0; replay < 2; ++replay) {
    call.reset();
    graph.launch(stream);
    const Output captured = call.result(stream);
    EXPECT_TRUE(same_bits(captured.states, expected.states));
    EXPECT_TRUE(same_bits(captured.final_states, expected.final_states));
  }
}

TEST_F(FwdPassStateCuda, PlansThatMakeNoSenseStayWithinTheTensors) {
  const ChunkInputs in({});
  with_senseless_plans(in, [&](const ChunkInputs& bad) { Call(bad, initial_states(in)).run(); });
}

// ---- what needs no device -----------------------------------------------------------------------

TEST(FwdPassStateCudaErrors, NameTheArgumentThatIsWrong) {
  static std::byte memory[64];
  const ChunkInputs in({});
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  FwdPassStateArgs good{.x = view(DType::f16, {2, 20, 4, 16}),
                        .B = view(DType::f16, {2, 20, 2, 16}),
                        .dt = view(DType::f32, {4, 6, 8}),
                        .dA_cumsum = view(DType::f32, {4, 6, 2, 8}),
                        .initial_states = view(DType::f32, {2, 4, 16, 16}),
                        .plan = in.plan,
                        .states = view(DType::f32, {6, 4, 16, 16}),
                        .final_states = view(DType::f32, {2, 4, 16, 16})};
  good.plan.device = {DeviceType::cuda, 0};
  const auto error_of = [&](auto&& change) {
    FwdPassStateArgs args = good;
    change(args);
    return test::error_of([&] { cuda::fwd_pass_state(args, nullptr); });
  };
  EXPECT_EQ(error_of([](auto& a) { a.plan.device = {}; }),
            "fwd_pass_state: the plan is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.B.device.index = 1; }),
            "fwd_pass_state: B is in memory of CUDA device 1, expected it in memory of CUDA device "
            "0");
  EXPECT_EQ(error_of([](auto& a) { a.states = a.states.narrow(0, 0, 5); }),
            "fwd_pass_state: states has shape (5, 4, 16, 16), expected (6, 4, 16, 16)");
  EXPECT_EQ(error_of([&](auto& a) { a.x = in.x.view; }).substr(0, 60),
            "fwd_pass_state: B is in memory of CUDA device 0, expected it");
  try {
    cpu::fwd_pass_state_workspace_bytes(good, 1);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "fwd_pass_state: x is in memory of CUDA device 0, expected it in host memory");
  }
}

}  // namespace
}  // namespace adder
