// compute_out on a CUDA device.

#include <gtest/gtest.h>

#include <limits>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/compute_out/test_reference.h"
#include "ops/fwd_pass_state/test_device.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using ComputeOutCuda = test::OnDevice;
using test::as_good_as_plain;
using test::ChunkInputs;
using test::ChunkInputsOnDevice;
using test::ChunkShape;
using test::DeviceBuffer;
using test::random_states;
using test::reference_outputs;
using test::same_bits;
using test::with_senseless_plans;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// One problem on the device.
class Call {
 public:
  explicit Call(const ChunkInputs& in, const Tensor& states, std::int64_t misalignment = 0)
      : in_(in, misalignment),
        states_(test::place_on_device(states.view, misalignment)),
        y_(in.shape.dtype, in.x.view.numel(), misalignment) {
    const ChunkShape& s = in.shape;
    args = {.x = in_.x.view,
            .B = in_.B.view,
            .C = in_.C.view,
            .dt = in_.dt.view,
            .dA_cumsum = in_.dA_cumsum.view,
            .states = states_.view,
            .D = in_.D.view,
            .z = in_.z.view,
            .plan = in_.plan.plan,
            .y = y_.view({s.batch, s.seqlen, s.nheads, s.headdim})};
  }

  void poison() { y_.poison(); }
  std::vector<float> run() {
    cuda::compute_out(args, nullptr);
    return result();
  }
  std::vector<float> result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    return y_.values(stream);
  }

  ComputeOutArgs args;

 private:
  ChunkInputsOnDevice in_;
  Tensor states_;
  DeviceBuffer y_;
};

void expect_right(const ChunkInputs& in, std::int64_t misalignment = 0) {
  const DType dtype = in.shape.dtype;
  const Tensor states = random_states(in);
  const auto plain = reference_outputs<float, double>(in, states, ref::DigitsOf{dtype});
  EXPECT_TRUE(as_good_as_plain(Call(in, states, misalignment).run(),
                               reference_outputs<double>(in, states), test::rounded(plain, dtype)));
}

TEST_F(ComputeOutCuda, AsGoodAsPlainLoopsInEveryDtypeAndSize) {
  for (DType dtype : kDTypes) {
    for (std::int64_t headdim : {1, 5, 16, 64, 80}) {
      for (std::int64_t dstate : {1, 7, 64, 100}) {
        for (std::int64_t misalignment : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << name_of(dtype) << " headdim " << headdim << " dstate " << dstate
                       << " misalignment " << misalignment);
          expect_right(ChunkInputs({.headdim = headdim, .dstate = dstate, .dtype = dtype}),
                       misalignment);
        }
      }
    }
  }
}

TEST_F(ComputeOutCuda, EveryLengthAroundTheChunkAndTheTile) {
  for (DType dtype : kDTypes) {
    for (std::int64_t chunk_size : {8, 64, 150}) {
      for (std::int64_t seqlen : {std::int64_t{0}, std::int64_t{1}, chunk_size - 1, chunk_size,
                                  chunk_size + 1, 2 * chunk_size - 3}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " seqlen " << seqlen << " chunk_size " << chunk_size);
        expect_right(ChunkInputs({.seqlen = seqlen,
                                  .nheads = 2,
                                  .ngroups = 1,
                                  .chunk_size = chunk_size,
                                  .dtype = dtype}));
      }
    }
  }
}

// As good as plain loops whose factors have the digits of tf32, and not as those with all of them.
TEST_F(ComputeOutCuda, Tf32WhereItIsAllowed) {
  const ChunkInputs in({.seqlen = 150, .headdim = 64, .dstate = 100, .chunk_size = 64});
  const Tensor states = random_states(in);
  Call call(in, states);
  call.args.allow_tf32 = true;
  const auto got = call.run();
  const auto truth = reference_outputs<double>(in, states);
  EXPECT_TRUE(as_good_as_plain(
      got, truth,
      reference_outputs<float, double>(test::tf32_of(in), states, ref::DigitsOf{DType::f16})));
  EXPECT_FALSE(as_good_as_plain(got, truth, reference_outputs<float, double>(in, states)));
}

TEST_F(ComputeOutCuda, AllowingTf32ChangesNothingFor16Bits) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    const ChunkInputs in({.dtype = dtype});
    const Tensor states = random_states(in);
    Call call(in, states);
    call.args.allow_tf32 = true;
    EXPECT_TRUE(same_bits(call.run(), Call(in, states).run())) << name_of(dtype);
  }
}

// Blocks take several heads, which share the scores of their chunk.
TEST_F(ComputeOutCuda, ManyHeadsShareScores) {
  const int multiprocessors = cuda::properties(cuda::current_device()).multiprocessors;
  for (DType dtype : kDTypes) {
    for (std::int64_t chunk_size : {13, 70}) {
      const std::int64_t heads_per_group =
          9 * multiprocessors / 2;  // a few hundred; not a multiple
      expect_right(ChunkInputs({.batch = 1,
                                .seqlen = 80,
                                .nheads = 2 * heads_per_group,
                                .headdim = 2,
                                .dstate = 3,
                                .chunk_size = chunk_size,
                                .dtype = dtype}));
    }
  }
}

TEST_F(ComputeOutCuda, TokensWithoutChunkGetZeros) {
  std::vector<std::int32_t> seq_idx(40, -1);
  for (std::size_t t = 3; t < 15; ++t) seq_idx[t] = 0;
  for (std::size_t t = 24; t < 31; ++t) seq_idx[t] = t == 27 ? -1 : 0;
  expect_right(ChunkInputs({}, {.seq_idx = ConstTensorView::of(seq_idx.data(), {2, 20})}));
  std::fill(seq_idx.begin(), seq_idx.end(), -1);  // no chunk at all
  expect_right(ChunkInputs({}, {.seq_idx = ConstTensorView::of(seq_idx.data(), {2, 20})}));
}

TEST_F(ComputeOutCuda, LaterTokensNeverChangeEarlierOutputs) {
  for (DType dtype : kDTypes) {
    const float garbage = dtype == DType::f16 ? 6e4F : 1e30F;
    const ChunkInputs in({.batch = 1, .seqlen = 70, .chunk_size = 70, .dtype = dtype});
    const Tensor states = random_states(in);
    const auto before = Call(in, states).run();
    const std::int64_t width = 4 * 16;
    for (std::int64_t t : {69, 65, 64, 63, 40, 17, 16, 1}) {
      for (const Tensor* tensor : {&in.x, &in.B, &in.C, &in.z}) {
        const std::int64_t row = tensor->view.stride(1);
        const auto bytes = test::encode(
            std::vector<float>(static_cast<std::size_t>((70 - t) * row), garbage), dtype);
        std::memcpy(tensor->view.narrow(1, t, 70 - t).data, bytes.data(), bytes.size());
      }
      const auto size = static_cast<std::size_t>(t * width);
      const auto after = Call(in, states).run();
      EXPECT_TRUE(same_bits(std::span(after).first(size), std::span(before).first(size)))
          << name_of(dtype) << " token " << t;
    }
  }
}

TEST_F(ComputeOutCuda, OutputMayBeTheInputOrTheGate) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t chunk_size : {64, 150}) {
      const ChunkInputs in(
          {.seqlen = 155, .headdim = 20, .chunk_size = chunk_size, .dtype = dtype});
      const Tensor states = random_states(in);
      const auto apart = Call(in, states).run();
      for (bool over_x : {false, true}) {
        Call call(in, states);
        const ConstTensorView& over = over_x ? call.args.x : call.args.z;
        call.args.y = TensorView(const_cast<void*>(over.data), dtype, over.dims(), over.device);
        cuda::compute_out(call.args, nullptr);
        const Tensor got = convert(cuda::to_host(call.args.y).view, DType::f32);
        EXPECT_TRUE(same_bits(got.span<float>(), apart)) << name_of(dtype) << over_x;
      }
    }
  }
}

TEST_F(ComputeOutCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  const ChunkInputs in({.seqlen = 150, .chunk_size = 64, .dtype = DType::bf16});
  Call call(in, random_states(in));
  const auto expected = call.run();
  call.poison();
  EXPECT_TRUE(same_bits(call.run(), expected));
  const cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { cuda::compute_out(call.args, stream); });
  for (int replay = 0; replay < 2; ++replay) {
    call.poison();
    graph.launch(stream);
    EXPECT_TRUE(same_bits(call.result(stream), expected));
  }
}

TEST_F(ComputeOutCuda, PlansThatMakeNoSenseStayWithinTheTensors) {
  const ChunkInputs in({});
  with_senseless_plans(in, [&](const ChunkInputs& bad) { Call(bad, random_states(in)).run(); });
}

// ---- what needs no device -----------------------------------------------------------------------

TEST(ComputeOutCudaErrors, NameTheArgumentThatIsWrong) {
  static std::byte memory[64];
  const ChunkInputs in({});
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  ComputeOutArgs good{.x = view(DType::f16, {2, 20, 4, 16}),
                      .B = view(DType::f16, {2, 20, 2, 16}),
                      .C = view(DType::f16, {2, 20, 2, 16}),
                      .dt = view(DType::f32, {4, 6, 8}),
                      .dA_cumsum = view(DType::f32, {4, 6, 2, 8}),
                      .states = view(DType::f32, {6, 4, 16, 16}),
                      .D = view(DType::f32, {4}),
                      .z = view(DType::f16, {2, 20, 4, 16}),
                      .plan = in.plan,
                      .y = view(DType::f16, {2, 20, 4, 16})};
  good.plan.device = {DeviceType::cuda, 0};
  const auto error_of = [&](auto&& change) {
    ComputeOutArgs args = good;
    change(args);
    return test::error_of([&] { cuda::compute_out(args, nullptr); });
  };
  EXPECT_EQ(error_of([](auto& a) { a.plan.device = {}; }),
            "compute_out: the plan is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.z.device = {}; }),
            "compute_out: z is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.D.device.index = 1; }),
            "compute_out: D is in memory of CUDA device 1, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.C = a.C.narrow(2, 0, 1); }),
            "compute_out: C has shape (2, 20, 1, 16), expected (2, 20, 2, 16)");
  try {
    cpu::compute_out_workspace_bytes(good, 1);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "compute_out: x is in memory of CUDA device 0, expected it in host memory");
  }
}

}  // namespace
}  // namespace adder
