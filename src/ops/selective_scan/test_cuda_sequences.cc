// Several sequences in one call on a CUDA device, and the errors of its entry.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "ops/selective_scan/test_device.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using SelectiveScanCuda = test::OnDevice;
using test::append;
using test::DeviceScan;
using test::kScanDTypes;
using test::random_scan;
using test::ScanOutput;
using test::ScanPools;
using test::ScanProblem;
using test::zeros;

// Known bugs 5, 9 and 13: sequences of odd lengths, some empty, in one call; with segments too.
TEST_F(SelectiveScanCuda, PackedSequencesAsGoodAsPlainLoops) {
  for (DType dtype : kScanDTypes) {
    ScanPools pools(dtype);
    for (const std::vector<std::int32_t>& cu_seqlens :
         {std::vector<std::int32_t>{0, 1, 1, 4, 37, 37, 70, 83},
          std::vector<std::int32_t>{0, 0, 900, 901, 2100},
          std::vector<std::int32_t>{0, 17, 1900, 1900}}) {
      for (std::int64_t d_inner : {12, 37}) {
        ScanProblem p{.seqlen = cu_seqlens.back(), .d_inner = d_inner};
        p.cu_seqlens = cu_seqlens;
        random_scan(p, dtype);
        pools.add(p, DeviceScan(p, dtype).run(),
                  fmt::format("{} d_inner {}", name_of(dtype), d_inner));
      }
    }
    pools.expect_right();
  }
}

TEST_F(SelectiveScanCuda, PackedSequencesEqualSingleOnes) {
  for (DType dtype : kScanDTypes) {
    ScanProblem packed{.seqlen = 83, .d_inner = 37};
    packed.cu_seqlens = {0, 1, 1, 4, 37, 37, 70, 83};
    random_scan(packed, dtype);
    const ScanOutput got = DeviceScan(packed, dtype).run();
    ScanOutput expected;
    for (std::int64_t s = 0; s < packed.nsequences(); ++s) {
      const auto at = static_cast<std::size_t>(s);
      const ScanOutput one = DeviceScan(packed.part(packed.cu_seqlens[at],
                                                    packed.cu_seqlens[at + 1], packed.state_of(s)),
                                        dtype)
                                 .run();
      append(expected.y, one.y);
      append(expected.states, one.states);
    }
    EXPECT_TRUE(test::same_bits(got.y, expected.y));
    EXPECT_TRUE(test::same_bits(got.states, expected.states));
  }
}

TEST_F(SelectiveScanCuda, ABatchRowEqualsTheSameRowAlone) {
  ScanProblem batch{.batch = 4, .seqlen = 21, .d_inner = 40};
  random_scan(batch, DType::bf16);
  const ScanOutput all = DeviceScan(batch, DType::bf16).run();
  for (std::int64_t b = 0; b < 4; ++b) {
    const ScanOutput one =
        DeviceScan(batch.part(b * 21, (b + 1) * 21, batch.state_of(b)), DType::bf16).run();
    EXPECT_TRUE(test::same_bits(
        one.y, std::span(all.y).subspan(static_cast<std::size_t>(b * 21 * 40), 21 * 40)));
    EXPECT_TRUE(test::same_bits(
        one.states, std::span(all.states).subspan(static_cast<std::size_t>(b * 640), 640)));
  }
}

// The longer ones are cut into segments, at whose borders runs end, go on or are padding.
TEST_F(SelectiveScanCuda, SeqIdxAsGoodAsPlainLoops) {
  test::Random random(2);
  for (DType dtype : kScanDTypes) {
    ScanPools pools(dtype);
    for (int round = 0; round < 16; ++round) {
      const std::int64_t seqlen = round % 4 < 2 ? 90 : 700;
      ScanProblem p{.batch = 1 + round % 2, .seqlen = seqlen, .d_inner = 19, .dstate = 6};
      if (p.batch == 1) {
        p.cu_seqlens = {0, 30, 30, static_cast<std::int32_t>(seqlen)};
      }
      random_scan(p, dtype);
      const int stretch = round < 8 ? 1 : 1 << (round - 6);
      std::int32_t index = 0;
      while (static_cast<std::int64_t>(p.seq_idx.size()) < p.batch * seqlen) {
        if (random.integer(0, 9) == 0) index = static_cast<std::int32_t>(random.integer(0, 3));
        const std::int32_t entry = random.integer(0, 3) == 0 ? -1 : index;
        p.seq_idx.insert(p.seq_idx.end(), static_cast<std::size_t>(stretch), entry);
      }
      p.seq_idx.resize(static_cast<std::size_t>(p.batch * seqlen));
      pools.add(p, DeviceScan(p, dtype).run(), fmt::format("{} round {}", name_of(dtype), round));
    }
    pools.expect_right();
  }
}

// Known bug 5: padding leaks into the state. It may hold anything.
TEST_F(SelectiveScanCuda, PaddingOnEitherSideChangesNothing) {
  constexpr std::int64_t kInner = 21;
  for (float garbage : {99.0F, std::nanf("")}) {
    for (DType dtype : kScanDTypes) {
      ScanProblem plain{.seqlen = 6, .d_inner = kInner};
      random_scan(plain, dtype);
      const ScanOutput alone = DeviceScan(plain, dtype).run();
      for (std::int64_t left : {0, 1, 5, 40}) {
        for (std::int64_t right : {0, 1, 5, 40}) {
          SCOPED_TRACE(::testing::Message() << "left " << left << " right " << right);
          ScanProblem padded = plain;
          padded.seqlen = left + 6 + right;
          const auto pad = [&](std::vector<float>& v, std::int64_t width) {
            v.insert(v.begin(), static_cast<std::size_t>(left * width), garbage);
            v.insert(v.end(), static_cast<std::size_t>(right * width), garbage);
          };
          pad(padded.x, kInner);
          pad(padded.dt, kInner);
          pad(padded.z, kInner);
          pad(padded.B, 16);
          pad(padded.C, 16);
          padded.seq_idx.assign(static_cast<std::size_t>(padded.seqlen), -1);
          std::fill_n(padded.seq_idx.begin() + left, 6, 3);
          const ScanOutput got = DeviceScan(padded, dtype).run();
          std::vector<float> expected = zeros(left * kInner);
          append(expected, alone.y);
          append(expected, zeros(right * kInner));
          EXPECT_TRUE(test::same_bits(got.y, expected));
          EXPECT_TRUE(test::same_bits(got.states, alone.states));
        }
      }
    }
  }
}

// The same over several segments, whole ones of padding among them.
TEST_F(SelectiveScanCuda, PaddingOfWholeSegmentsChangesNothing) {
  constexpr std::int64_t kInner = 21;
  constexpr std::int64_t kTokens = 720;
  for (DType dtype : kScanDTypes) {
    ScanPools pools(dtype);
    for (std::int64_t left : {0, 138, 144, 300, 690}) {
      for (std::int64_t length : {1, 6, 200}) {
        const std::int64_t right = std::min(left + length, kTokens);
        ScanProblem p{.seqlen = kTokens, .d_inner = kInner};
        random_scan(p, dtype);
        p.seq_idx.assign(kTokens, -1);
        std::fill(p.seq_idx.begin() + left, p.seq_idx.begin() + right, 3);
        for (std::int64_t t = 0; t < kTokens; ++t) {
          if (t >= left && t < right) continue;
          for (auto* v : {&p.x, &p.dt, &p.z}) {
            std::fill_n(v->begin() + t * kInner, kInner, std::nanf(""));
          }
          for (auto* v : {&p.B, &p.C}) std::fill_n(v->begin() + t * 16, 16, std::nanf(""));
        }
        const std::string label = fmt::format("{} left {} length {}", name_of(dtype), left, length);
        const ScanOutput got = DeviceScan(p, dtype).run();
        pools.add(p, got, label);
        const std::span y(got.y);
        EXPECT_TRUE(
            test::same_bits(y.first(static_cast<std::size_t>(left * kInner)), zeros(left * kInner)))
            << label;
        EXPECT_TRUE(test::same_bits(y.subspan(static_cast<std::size_t>(right * kInner)),
                                    zeros((kTokens - right) * kInner)))
            << label;
      }
    }
    pools.expect_right();
  }
}

// Known bug 9, and what a sequence before it left: a NaN does not outlive its sequence.
TEST_F(SelectiveScanCuda, AChangeOfSeqIdxStartsANewSequence) {
  constexpr std::int64_t kInner = 18;
  const std::vector<std::int32_t> lengths{33, 1, 2, 40, 3};
  ScanProblem packed{.seqlen = 79, .d_inner = kInner};
  random_scan(packed, DType::f32);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    packed.seq_idx.insert(packed.seq_idx.end(), static_cast<std::size_t>(lengths[s]),
                          static_cast<std::int32_t>(s));
  }
  const ScanOutput got = DeviceScan(packed, DType::f32).run();
  ScanOutput expected;
  std::vector<float> state = packed.states;  // continues into the first run
  std::int64_t begin = 0;
  for (std::int32_t length : lengths) {
    ScanProblem part = packed.part(begin, begin + length, state);
    part.seq_idx.clear();
    const ScanOutput one = DeviceScan(part, DType::f32).run();
    append(expected.y, one.y);
    expected.states = one.states;
    begin += length;
    state = zeros(kInner * 16);
  }
  EXPECT_TRUE(test::same_bits(got.y, expected.y));
  EXPECT_TRUE(test::same_bits(got.states, expected.states));

  packed.x[10 * kInner + 4] = std::nanf("");
  const ScanOutput spoiled = DeviceScan(packed, DType::f32).run();
  EXPECT_TRUE(std::isnan(spoiled.y[32 * kInner + 4]));
  EXPECT_TRUE(test::same_bits(std::span(spoiled.y).subspan(33 * kInner),
                              std::span(expected.y).subspan(33 * kInner)));
  EXPECT_TRUE(test::same_bits(spoiled.states, expected.states));
}

// The same where a sequence is cut into segments (of 144 tokens on large devices): the NaN in the
// same one as the reset or in one before it, resets at a border and on both sides of it, with and
// without padding before the reset, up to whole segments.
TEST_F(SelectiveScanCuda, NaNOfAnotherSegmentDoesNotOutliveItsSequence) {
  constexpr std::size_t kInner = 18;
  constexpr std::size_t kTokens = 700;
  for (DType dtype : kScanDTypes) {
    ScanPools pools(dtype);
    for (std::size_t reset : {16U, 143U, 144U, 145U, 160U, 300U, 433U, 576U, 699U}) {
      for (std::size_t padding : {0U, 1U, 15U, 160U, 310U}) {
        if (padding >= reset) continue;
        const std::string label =
            fmt::format("{} reset {} padding {}", name_of(dtype), reset, padding);
        SCOPED_TRACE(label);
        ScanProblem p{.seqlen = kTokens, .d_inner = kInner};
        random_scan(p, dtype);
        p.seq_idx.assign(kTokens, 1);
        std::fill_n(p.seq_idx.begin(), reset - padding, 0);
        std::fill_n(p.seq_idx.begin() + static_cast<std::int64_t>(reset - padding), padding, -1);
        const ScanOutput expected = DeviceScan(p, dtype).run();
        pools.add(p, expected, label);
        const std::span rest = std::span(expected.y).subspan(reset * kInner);
        for (std::size_t back : {1U, 150U, 400U}) {
          if (back > reset - padding) continue;
          for (auto member : {&ScanProblem::x, &ScanProblem::dt}) {
            ScanProblem spoiled = p;
            (spoiled.*member)[(reset - padding - back) * kInner + 4] = std::nanf("");
            const ScanOutput got = DeviceScan(spoiled, dtype).run();
            EXPECT_TRUE(std::isnan(got.y[(reset - padding - 1) * kInner + 4])) << back;
            EXPECT_TRUE(test::same_bits(std::span(got.y).subspan(reset * kInner), rest)) << back;
            EXPECT_TRUE(test::same_bits(got.states, expected.states)) << back;
          }
        }
      }
    }
    pools.expect_right();
  }
}

// Nothing is promised of the results, but nothing else may be touched, and the call must end.
TEST_F(SelectiveScanCuda, OffsetsThatMakeNoSenseStayWithinTheTensors) {
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{0, 1000000, -5, 3, 900},
        std::vector<std::int32_t>{-100, -50, -20, -10, -1},
        std::vector<std::int32_t>{900, 400, 300, 200, 100},
        std::vector<std::int32_t>{2147483647, -2147483647 - 1, 2147483647, 0, 2147483647}}) {
    for (std::int64_t misalignment : {0, 1}) {
      ScanProblem p{.seqlen = 900, .d_inner = 12};
      p.cu_seqlens = {0, 200, 400, 600, 900};
      random_scan(p, DType::f32);
      DeviceScan call(p, DType::f32, misalignment);
      const Tensor device = cuda::to_device(ConstTensorView::of(bad.data(), {5}));
      call.args.cu_seqlens = device.view;
      call.run();
    }
  }
}

// ---- what needs no device -----------------------------------------------------------------------

// Arguments whose memory is never touched, since one of them is wrong.
SelectiveScanArgs device_args() {
  static std::byte memory[64];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  SelectiveScanArgs args;
  args.x = view(DType::bf16, {1, 6, 8});
  args.dt = args.x;
  args.A = view(DType::f32, {8, 4});
  args.B = view(DType::bf16, {1, 6, 2, 4});
  args.C = args.B;
  args.final_states = view(DType::f32, {2, 8, 4});
  args.cu_seqlens = view(DType::i32, {3});
  args.seq_idx = view(DType::i32, {1, 6});
  args.y = view(DType::bf16, {1, 6, 8});
  return args;
}

template <typename Change>
std::string error_of(Change&& change) {
  SelectiveScanArgs args = device_args();
  change(args);
  return test::error_of([&] { validate(args); });
}

TEST(SelectiveScanCudaErrors, NameTheArgumentThatIsWrong) {
  using Args = SelectiveScanArgs;
  EXPECT_EQ(error_of([](Args&) {}), "no error");
  EXPECT_EQ(error_of([](Args& args) { args.dt.dtype = DType::f32; }),
            "selective_scan: dt has dtype f32, expected bf16");
  EXPECT_EQ(error_of([](Args& args) { args.x.dtype = DType::f64; }),
            "selective_scan: x has dtype f64, expected f32 or bf16 or f16");
  EXPECT_EQ(error_of([](Args& args) { args.A.dtype = DType::bf16; }),
            "selective_scan: A has dtype bf16, expected f32");
  EXPECT_EQ(error_of([](Args& args) { args.cu_seqlens.device = {}; }),
            "selective_scan: cu_seqlens is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](Args& args) { args.final_states.device.index = 1; }),
            "selective_scan: final_states is in memory of CUDA device 1, expected it in memory of "
            "CUDA device 0");
  EXPECT_EQ(error_of([](Args& args) { args.B.shape[2] = 3; }),
            "selective_scan: B has 3 groups, expected a divisor of d_inner, 8");
}

TEST(SelectiveScanCudaErrors, EachDeviceHasItsEntry) {
  const ScanProblem p = ScanProblem{.seqlen = 6, .d_inner = 8, .dstate = 4}.fill();
  std::vector<float> y(p.x.size());
  std::vector<float> states(p.states);
  const SelectiveScanArgs host =
      p.args(TensorView::of(y.data(), {1, 6, 8}), TensorView::of(states.data(), {1, 8, 4}));
  EXPECT_EQ(test::error_of([&] { cuda::selective_scan(host, {}, nullptr); }),
            "selective_scan: x is in host memory, expected it in memory of a CUDA device");
  EXPECT_EQ(test::error_of([&] { cuda::selective_scan_workspace_bytes(host); }),
            "selective_scan: x is in host memory, expected it in memory of a CUDA device");
  ThreadPool pool(1);
  EXPECT_EQ(test::error_of([&] { cpu::selective_scan(device_args(), pool); }),
            "selective_scan: x is in memory of CUDA device 0, expected it in host memory");
}

TEST_F(SelectiveScanCuda, AWorkspaceThatIsTooSmallIsAnError) {
  ScanProblem p{.seqlen = 1000, .d_inner = 8};
  random_scan(p, DType::f32);
  const DeviceScan call(p, DType::f32);
  const std::size_t bytes = cuda::selective_scan_workspace_bytes(call.args);
  ASSERT_GT(bytes, 0U);
  EXPECT_EQ(test::error_of([&] { cuda::selective_scan(call.args, {}, nullptr); }),
            fmt::format("selective_scan: workspace has 0 bytes, expected at least {}", bytes));
}

}  // namespace
}  // namespace adder
