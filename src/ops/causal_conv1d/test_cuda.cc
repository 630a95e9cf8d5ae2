#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/test_problem.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/pooled.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using CausalConv1dCuda = test::OnDevice;
using test::ConvProblem;
using test::DeviceBuffer;
using test::Pooled;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

struct Result {
  std::vector<float> y, conv_state;
};

// One call of a problem on the device, with y and the state between canaries.
class DeviceCall {
 public:
  DeviceCall(const ConvProblem& p, DType dtype, std::int64_t misalignment = 0)
      : x_(dtype, p.x, misalignment),
        weight_(DType::f32, p.weight, misalignment),
        bias_(DType::f32, p.bias, misalignment),
        y_(dtype, static_cast<std::int64_t>(p.x.size()), misalignment),
        state_(DType::f32, p.conv_state, misalignment),
        cu_seqlens_(index_tensor(p.cu_seqlens)),
        seq_idx_(index_tensor(p.seq_idx)) {
    args = {.x = x_.view({p.ntokens(), p.channels}),
            .weight = weight_.view({p.channels, p.width}),
            .y = y_.view({p.ntokens(), p.channels}),
            .conv_state = state_.view({p.nsequences(), p.width - 1, p.channels}),
            .cu_seqlens = cu_seqlens_.view,
            .silu = p.silu};
    if (!p.bias.empty()) args.bias = bias_.view({p.channels});
    if (!p.seq_idx.empty()) args.seq_idx = seq_idx_.view;
  }

  Result run() {
    cuda::causal_conv1d(args, nullptr);
    return result();
  }
  Result result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    EXPECT_TRUE(state_.intact(stream));
    return {y_.values(stream), state_.values(stream)};
  }
  void set_state(std::span<const float> values) { state_.fill(values); }

  CausalConv1dArgs args;

 private:
  static Tensor index_tensor(const std::vector<std::int32_t>& values) {
    return cuda::to_device(
        ConstTensorView::of(values.data(), {static_cast<std::int64_t>(values.size())}));
  }

  DeviceBuffer x_, weight_, bias_, y_, state_;
  Tensor cu_seqlens_, seq_idx_;
};

ConvProblem random_problem(DType dtype, std::vector<std::int32_t> cu_seqlens, std::int64_t channels,
                           std::int64_t width, bool with_bias = true) {
  ConvProblem p = ConvProblem::random(std::move(cu_seqlens), channels, width, with_bias);
  p.x = test::rounded(p.x, dtype);
  p.conv_state = test::rounded(p.conv_state, dtype);
  return p;
}

// Adds the device's y to `pooled`; the state is exact.
void compare(const ConvProblem& p, DType dtype, std::int64_t misalignment, Pooled& pooled,
             const std::string& label) {
  SCOPED_TRACE(label);
  const Result got = DeviceCall(p, dtype, misalignment).run();
  const auto plain = p.reference<float>();
  pooled.add(got.y, p.reference<double>().y, test::rounded(plain.y, dtype), label);
  EXPECT_TRUE(test::same_bits(got.conv_state, plain.conv_state));
}

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::vector<float> zeros(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

TEST_F(CausalConv1dCuda, AsGoodAsPlainLoopsInEveryDtypeAndSize) {
  for (DType dtype : kDTypes) {
    for (std::int64_t width : {2, 3, 4, 5, 6, 7, 8}) {
      for (std::int64_t misalignment : {0, 1}) {
        Pooled pooled;
        for (std::int32_t ntokens : {0, 1, 2, 3, 7, 8, 9, 150}) {
          for (std::int64_t channels : {1, 8, 31, 256, 257, 264}) {
            ConvProblem p = random_problem(dtype, {0, ntokens}, channels, width, width % 2 == 0);
            p.silu = width % 3 != 0;
            compare(p, dtype, misalignment, pooled,
                    fmt::format("{} ntokens {} channels {} width {} misalignment {}",
                                name_of(dtype), ntokens, channels, width, misalignment));
          }
        }
        EXPECT_TRUE(pooled.as_good_as_plain());
      }
    }
  }
}

// Many channels and tokens, so that each warp walks through many of them.
TEST_F(CausalConv1dCuda, LongRunsAreAsGoodAsPlainLoops) {
  for (DType dtype : kDTypes) {
    for (std::int64_t misalignment : {0, 1}) {
      Pooled pooled;
      const ConvProblem p = random_problem(dtype, {0, 2500, 2503, 6001}, 1800, 4);
      compare(p, dtype, misalignment, pooled,
              fmt::format("{} misalignment {}", name_of(dtype), misalignment));
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

TEST_F(CausalConv1dCuda, WithoutStateTheHistoryIsZeros) {
  ConvProblem p = ConvProblem::random({0, 11}, 72, 4);
  p.conv_state = zeros(3 * 72);
  const Result expected = DeviceCall(p, DType::f32).run();
  DeviceCall call(p, DType::f32);
  call.args.conv_state = {};
  call.args.cu_seqlens = {};
  EXPECT_TRUE(test::same_bits(call.run().y, expected.y));
}

// Known bugs 3 and 4: more than one token with a cache drops history; an incoming state ignored.
TEST_F(CausalConv1dCuda, ASplitAtEveryPositionEqualsOnePass) {
  for (DType dtype : kDTypes) {
    for (std::int64_t width : {2, 4, 8}) {
      const ConvProblem whole = random_problem(dtype, {0, 37}, 40, width);
      const Result expected = DeviceCall(whole, dtype).run();
      for (std::int64_t split = 0; split <= 37; ++split) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " width " << width << " split " << split);
        Result head = DeviceCall(whole.part(0, split, whole.conv_state), dtype).run();
        const Result tail = DeviceCall(whole.part(split, 37, head.conv_state), dtype).run();
        append(head.y, tail.y);
        EXPECT_TRUE(test::same_bits(head.y, expected.y));
        EXPECT_TRUE(test::same_bits(tail.conv_state, expected.conv_state));
      }
    }
  }
}

TEST_F(CausalConv1dCuda, SequencesShorterThanTheWindow) {  // known bug 14
  for (std::int64_t width : {2, 4, 8}) {
    for (std::int32_t ntokens = 1; ntokens <= width; ++ntokens) {
      SCOPED_TRACE(::testing::Message() << "width " << width << " ntokens " << ntokens);
      const ConvProblem p = ConvProblem::random({0, ntokens}, 8, width);
      std::vector<float> inputs = p.conv_state;  // all inputs there have ever been
      append(inputs, p.x);
      const Result got = DeviceCall(p, DType::f32).run();
      EXPECT_TRUE(test::same_bits(got.conv_state, std::span(inputs).last(p.conv_state.size())));
    }
  }
}

// Known bugs 9 and 13. The lengths put starts of sequences, and the tokens that still see a
// sequence's incoming state, on both sides of every boundary between runs.
TEST_F(CausalConv1dCuda, PackedSequencesEqualSingleOnes) {
  std::vector<std::int32_t> mixed{0, 1, 1, 4, 11, 11};
  for (std::int32_t length = 0; length < 40; ++length) mixed.push_back(mixed.back() + length % 19);
  mixed.insert(mixed.end(), {1000, 1001, 1001, 1003});
  std::vector<std::int32_t> ones{0};  // a step of many sequences
  for (std::int32_t s = 0; s < 70; ++s) ones.push_back(ones.back() + 1);
  for (std::int64_t width : {4, 8}) {
    for (const auto& cu_seqlens : {mixed, ones}) {
      for (std::int64_t channels : {20, 264}) {
        const ConvProblem p = random_problem(DType::bf16, cu_seqlens, channels, width);
        const Result packed = DeviceCall(p, DType::bf16).run();
        Result expected;
        for (std::int64_t s = 0; s < p.nsequences(); ++s) {
          const auto at = static_cast<std::size_t>(s);
          const Result one =
              DeviceCall(p.part(p.cu_seqlens[at], p.cu_seqlens[at + 1], p.state_of(s)), DType::bf16)
                  .run();
          append(expected.y, one.y);
          append(expected.conv_state, one.conv_state);
        }
        EXPECT_TRUE(test::same_bits(packed.y, expected.y)) << width << " " << channels;
        EXPECT_TRUE(test::same_bits(packed.conv_state, expected.conv_state)) << width;
      }
    }
  }
}

TEST_F(CausalConv1dCuda, SeqIdxAsGoodAsPlainLoops) {
  test::Random random(2);
  for (DType dtype : kDTypes) {
    for (std::int64_t misalignment : {0, 1}) {
      Pooled pooled;
      for (int round = 0; round < 24; ++round) {
        ConvProblem p = random_problem(dtype, {0, 90, 90, 200, 203}, 40, 2 + round % 7);
        std::int32_t index = 0;
        // From tokens one by one to stretches longer than a run.
        const int stretch = 1 << (round % 6);
        while (p.seq_idx.size() < 203) {
          if (random.integer(0, 4) == 0) index = static_cast<std::int32_t>(random.integer(0, 3));
          const std::int32_t entry = random.integer(0, 3) == 0 ? -1 : index;
          const auto count = std::min<std::size_t>(203 - p.seq_idx.size(), stretch);
          p.seq_idx.insert(p.seq_idx.end(), count, entry);
        }
        compare(p, dtype, misalignment, pooled,
                fmt::format("{} round {} misalignment {}", name_of(dtype), round, misalignment));
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

TEST_F(CausalConv1dCuda, PaddingOnEitherSideChangesNothing) {  // known bug 5
  constexpr std::int64_t kChannels = 24;
  for (std::int64_t left : {0, 1, 2, 5, 70}) {
    for (std::int64_t right : {0, 1, 2, 5, 70}) {
      SCOPED_TRACE(::testing::Message() << "left " << left << " right " << right);
      const ConvProblem plain = ConvProblem::random({0, 6}, kChannels, 4);
      ConvProblem padded = plain;
      padded.cu_seqlens = {0, static_cast<std::int32_t>(left + 6 + right)};
      padded.x.assign(static_cast<std::size_t>((left + 6 + right) * kChannels), 99.0F);
      std::copy(plain.x.begin(), plain.x.end(), padded.x.begin() + left * kChannels);
      padded.seq_idx.assign(static_cast<std::size_t>(left + 6 + right), -1);
      std::fill_n(padded.seq_idx.begin() + left, 6, 0);
      const Result got = DeviceCall(padded, DType::f32).run();
      const Result alone = DeviceCall(plain, DType::f32).run();
      std::vector<float> expected = zeros(left * kChannels);
      append(expected, alone.y);
      append(expected, zeros(right * kChannels));
      EXPECT_TRUE(test::same_bits(got.y, expected));
      EXPECT_TRUE(test::same_bits(got.conv_state, alone.conv_state));
    }
  }
}

TEST_F(CausalConv1dCuda, AnyWeightLayoutGivesTheSameBits) {
  constexpr std::int64_t kChannels = 600;
  constexpr std::int64_t kWidth = 4;
  const ConvProblem p = random_problem(DType::bf16, {0, 9}, kChannels, kWidth);
  const Result expected = DeviceCall(p, DType::bf16).run();
  // (width, channels) in memory, seen through its transposed view, and some with gaps.
  for (const auto& [channel_stride, tap_stride] :
       {std::pair{std::int64_t{1}, kChannels}, std::pair{std::int64_t{1}, kChannels + 1},
        std::pair{std::int64_t{3}, 3 * kChannels + 1}, std::pair{kWidth + 3, std::int64_t{1}}}) {
    std::vector<float> memory(static_cast<std::size_t>(kChannels * 16), NAN);
    for (std::int64_t c = 0; c < kChannels; ++c) {
      for (std::int64_t k = 0; k < kWidth; ++k) {
        memory[static_cast<std::size_t>(c * channel_stride + k * tap_stride)] =
            p.weight[static_cast<std::size_t>(c * kWidth + k)];
      }
    }
    const DeviceBuffer weight(DType::f32, memory);
    DeviceCall call(p, DType::bf16);
    call.args.weight = weight.view({kChannels, kWidth});
    call.args.weight.strides = {channel_stride, tap_stride};
    EXPECT_TRUE(test::same_bits(call.run().y, expected.y)) << "channel stride " << channel_stride;
  }
}

// As in a model: x is a slice of the rows of in_proj.
TEST_F(CausalConv1dCuda, StridedRowsLeaveTheGapsAlone) {
  constexpr std::int64_t kChannels = 48;
  for (std::int64_t shift : {0, 3}) {  // 3: no row is aligned to 16 bytes
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " shift " << shift);
      const ConvProblem p = random_problem(dtype, {0, 3, 40}, kChannels, 4);
      DeviceCall call(p, dtype);
      const Result expected = call.run();
      std::vector<float> x(40 * 104, NAN);
      std::vector<float> state(2 * 3 * 64, -7.0F);
      for (std::size_t i = 0; i < p.x.size(); ++i) x[i / 48 * 104 + 32 + shift + i % 48] = p.x[i];
      for (std::size_t i = 0; i < p.conv_state.size(); ++i) {
        state[i / 48 * 64 + 8 + shift + i % 48] = p.conv_state[i];
      }
      const DeviceBuffer x_rows(dtype, x);
      const DeviceBuffer y_rows(dtype, std::vector<float>(40 * 88, -7.0F));
      const DeviceBuffer states(DType::f32, state);
      call.args.x = x_rows.view({40, 104}).narrow(1, 32 + shift, kChannels);
      call.args.y = y_rows.view({40, 88}).narrow(1, 16 + shift, kChannels);
      call.args.conv_state = states.view({2, 3, 64}).narrow(2, 8 + shift, kChannels);
      cuda::causal_conv1d(call.args, nullptr);
      std::vector<float> expected_y(40 * 88, -7.0F);
      for (std::size_t i = 0; i < p.x.size(); ++i) {
        expected_y[i / 48 * 88 + 16 + shift + i % 48] = expected.y[i];
      }
      for (std::size_t i = 0; i < p.conv_state.size(); ++i) {
        state[i / 48 * 64 + 8 + shift + i % 48] = expected.conv_state[i];
      }
      EXPECT_TRUE(test::same_bits(y_rows.values(), expected_y));
      EXPECT_TRUE(test::same_bits(states.values(), state));
    }
  }
}

TEST_F(CausalConv1dCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (bool with_seq_idx : {false, true}) {
    ConvProblem p = random_problem(DType::bf16, {0, 700, 701, 3000}, 264, 4);
    if (with_seq_idx) p.seq_idx.assign(3000, 0);
    const Result expected = DeviceCall(p, DType::bf16).run();
    const Result again = DeviceCall(p, DType::bf16).run();
    EXPECT_TRUE(test::same_bits(again.y, expected.y));
    EXPECT_TRUE(test::same_bits(again.conv_state, expected.conv_state));
    DeviceCall call(p, DType::bf16);
    const cuda::OwnedStream stream;
    const cuda::Graph graph(stream, [&] { cuda::causal_conv1d(call.args, stream); });
    for (int replay = 0; replay < 2; ++replay) {
      call.set_state(p.conv_state);
      graph.launch(stream);
      const Result captured = call.result(stream);
      EXPECT_TRUE(test::same_bits(captured.y, expected.y));
      EXPECT_TRUE(test::same_bits(captured.conv_state, expected.conv_state));
    }
  }
}

TEST_F(CausalConv1dCuda, ExtremeValuesGiveNoNaN) {  // known bug 8
  for (DType dtype : kDTypes) {
    for (float value : {-6e4F, -1e4F, -100.0F, 0.0F, 100.0F, 1e4F, 6e4F}) {
      ConvProblem p = ConvProblem::random({0, 9}, 24, 4);
      std::fill(p.x.begin(), p.x.end(), value);
      std::fill(p.weight.begin(), p.weight.end(), 0.25F);
      for (float y : DeviceCall(p, dtype).run().y) {
        EXPECT_TRUE(std::isfinite(y)) << name_of(dtype) << " " << value;
      }
    }
  }
}

// Nothing is promised of the results, but nothing else may be touched, and the call must end.
TEST_F(CausalConv1dCuda, OffsetsThatMakeNoSenseStayWithinTheTensors) {
  const std::vector<std::vector<std::int32_t>> offsets = {
      {0, 1000000, -5, 3, 200},
      {-100, -50, -20, -10, -1},
      {500, 400, 300, 200, 100},
      {0, 0, 0, 0, 0},
      {2147483647, -2147483647 - 1, 2147483647, 0, 2147483647}};
  for (const auto& bad : offsets) {
    for (bool with_seq_idx : {false, true}) {
      for (std::int64_t misalignment : {0, 1}) {
        ConvProblem p = ConvProblem::random({0, 50, 100, 150, 200}, 24, 4);
        if (with_seq_idx) {
          p.seq_idx.assign(200, 2147483647);
          p.seq_idx[77] = -2147483647 - 1;
        }
        DeviceCall call(p, DType::f32, misalignment);
        const Tensor device = cuda::to_device(ConstTensorView::of(bad.data(), {5}));
        call.args.cu_seqlens = device.view;
        call.run();
      }
    }
  }
}

TEST_F(CausalConv1dCuda, OffsetsBeyond32Bits) {  // known bug 12
  const std::int64_t size = test::kBeyond32Bits + 64;
  if (cuda::properties(cuda::current_device()).memory_bytes < 3 * size) {
    GTEST_SKIP() << "no device memory for " << 2 * size << " bytes";
  }
  const Tensor memory = cuda::empty(DType::bf16, std::array{size});
  TensorView rows = memory.view;
  rows.rank = 2;
  rows.shape = {2, 64};
  rows.strides = {test::kBeyond32Bits, 1};
  const auto write = [](const TensorView& row, std::vector<float> values) {
    const auto bytes = test::encode(values, DType::bf16);
    cuda::copy_to_device(row.data, bytes.data(), bytes.size(), nullptr);
  };
  write(rows[0], {0, 2});  // channel 1 of the two tokens
  write(rows[1], {0, 3});
  const DeviceBuffer weight(DType::f32, std::vector<float>{10, 1, 10, 1});
  cuda::causal_conv1d({.x = rows.narrow(1, 0, 2),
                       .weight = weight.view({2, 2}),
                       .y = rows.narrow(1, 32, 2),
                       .silu = false},
                      nullptr);
  const Tensor first = cuda::to_host(rows[0].narrow(0, 33, 1));
  const Tensor second = cuda::to_host(rows[1].narrow(0, 33, 1));
  EXPECT_EQ(to_float(*first.as<bf16>()), 2.0F);
  EXPECT_EQ(to_float(*second.as<bf16>()), 23.0F);
}

// ---- what needs no device -----------------------------------------------------------------------

// Arguments whose memory is never touched, since one of them is wrong.
CausalConv1dArgs device_args() {
  static std::byte memory[64];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  static std::byte other[64];
  TensorView y = view(DType::bf16, {6, 8});
  y.data = other;
  return {.x = view(DType::bf16, {6, 8}),
          .weight = view(DType::f32, {8, 4}),
          .bias = view(DType::f32, {8}),
          .y = y,
          .conv_state = view(DType::f32, {2, 3, 8}),
          .cu_seqlens = view(DType::i32, {3}),
          .seq_idx = view(DType::i32, {6})};
}

template <typename Change>
std::string error_of(Change&& change) {
  CausalConv1dArgs args = device_args();
  change(args);
  return test::error_of([&] { cuda::causal_conv1d(args, nullptr); });
}

TEST(CausalConv1dCudaErrors, NameTheArgumentThatIsWrong) {
  using Args = CausalConv1dArgs;
  EXPECT_EQ(error_of([](Args& args) { args.y.dtype = DType::f32; }),
            "causal_conv1d: y has dtype f32, expected bf16");
  EXPECT_EQ(error_of([](Args& args) { args.x.dtype = DType::f64; }),
            "causal_conv1d: x has dtype f64, expected f32 or bf16 or f16");
  EXPECT_EQ(error_of([](Args& args) { args.weight.dtype = DType::bf16; }),
            "causal_conv1d: weight has dtype bf16, expected f32");
  EXPECT_EQ(error_of([](Args& args) { args.cu_seqlens.device = {}; }),
            "causal_conv1d: cu_seqlens is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](Args& args) { args.conv_state.device.index = 1; }),
            "causal_conv1d: conv_state is in memory of CUDA device 1, expected it in memory of "
            "CUDA device 0");
  EXPECT_EQ(error_of([](Args& args) { args.cu_seqlens.shape[0] = 1; }),
            "causal_conv1d: cu_seqlens has no sequence, expected at least one for 6 tokens");
  EXPECT_EQ(error_of([](Args& args) { args.seq_idx.shape[0] = 5; }),
            "causal_conv1d: seq_idx has shape (5), expected (6)");
  EXPECT_EQ(error_of([](Args& args) { args.y.data = const_cast<void*>(args.x.data); }),
            "causal_conv1d: y is x, expected another tensor");
}

TEST(CausalConv1dCudaErrors, EachDeviceHasItsEntry) {
  const ConvProblem p = ConvProblem::random({0, 6}, 8, 4);
  std::vector<float> y(p.x.size());
  std::vector<float> state(p.conv_state);
  const CausalConv1dArgs host =
      p.args(TensorView::of(y.data(), {6, 8}), TensorView::of(state.data(), {1, 3, 8}));
  EXPECT_EQ(error_of([&](CausalConv1dArgs& args) { args = host; }),
            "causal_conv1d: x is in host memory, expected it in memory of a CUDA device");
  ThreadPool pool(1);
  CausalConv1dArgs args = device_args();
  args.x.dtype = args.y.dtype = DType::f32;
  try {
    cpu::causal_conv1d(args, pool);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "causal_conv1d: x is in memory of CUDA device 0, expected it in host memory");
  }
}

}  // namespace
}  // namespace adder
