// selective_scan_step on a CUDA device.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/selective_scan_step/test_device.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/pooled.h"
#include "tests/support/sparse.h"
#include "tests/support/state_rounding.h"

namespace adder {
namespace {

using SelectiveScanStepCuda = test::OnDevice;
using test::DeviceBuffer;
using test::Pooled;
using test::ScanProblem;
using test::scan_step::DeviceStep;
using test::scan_step::Output;
using test::scan_step::random_step;
using test::scan_step::reference;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kStateDTypes[] = {DType::f32, DType::bf16};

Output run(const DeviceStep& step) {
  cuda::selective_scan_step(step.args, nullptr);
  return step.result();
}

TEST_F(SelectiveScanStepCuda, AsGoodAsPlainLoopsInEveryDtypeAndSize) {
  for (DType dtype : kDTypes) {
    int round = 0;
    for (std::int64_t dstate : {1, 3, 5, 12, 16, 17, 64, 100, 256, 300}) {
      Pooled y;
      Pooled states;
      for (std::int64_t batch : {1, 3}) {
        for (std::int64_t group_size : {1, 3, 16, 17, 65}) {
          for (std::int64_t misalignment : {0, 1}) {
            const std::int64_t ngroups = 1 + round % 3;
            const ScanProblem p = random_step({.batch = batch,
                                               .d_inner = group_size * ngroups,
                                               .dstate = dstate,
                                               .ngroups = ngroups,
                                               .dt_softplus = round % 4 != 0},
                                              dtype, round % 5 != 0);
            ++round;
            const std::string label =
                fmt::format("{} batch {} ngroups {} of {} dstate {} misalignment {}",
                            name_of(dtype), batch, ngroups, group_size, dstate, misalignment);
            const Output got = run(DeviceStep(p, dtype, misalignment));
            const auto truth = reference<double>(p);
            const auto plain = reference<float>(p);
            y.add(got.y, truth.y, test::rounded(plain.y, dtype), label);
            states.add(got.states, truth.states, plain.states, label);
          }
        }
      }
      EXPECT_TRUE(y.as_good_as_plain());
      // dt of 16-bit inputs is good to 2e-6.
      EXPECT_TRUE(states.as_good_as_plain(dtype == DType::f32 ? 1e-6 : 1e-5));
    }
  }
}

TEST_F(SelectiveScanStepCuda, StatesOfBf16AreNeighboursOfTheDefinitions) {
  for (DType dtype : kDTypes) {
    Pooled y;
    for (std::int64_t dstate : {1, 3, 12, 16, 17, 64, 100, 300}) {
      for (std::int64_t d_inner : {1, 3, 16, 33, 64}) {
        for (std::int64_t misalignment : {0, 1}) {
          const ScanProblem p = random_step({.batch = 3, .d_inner = d_inner, .dstate = dstate},
                                            dtype, true, DType::bf16);
          const Output got = run(DeviceStep(p, dtype, misalignment, 0, DType::bf16));
          const auto truth = reference<double>(p);
          const auto plain = reference<float>(p);
          const std::string label = fmt::format("{} {} channels of {} misalignment {}",
                                                name_of(dtype), d_inner, dstate, misalignment);
          y.add(got.y, truth.y, test::rounded(plain.y, dtype), label);
          // dt of 16-bit inputs is good to 2e-6.
          const double slack = test::slack_of(plain.states, truth.states);
          EXPECT_TRUE(test::are_neighbours(got.states, truth.states,
                                           dtype == DType::f32 ? slack : 10 * slack))
              << label;
        }
      }
    }
    EXPECT_TRUE(y.as_good_as_plain());
  }
}

// Rounded to nearest, a state that a step makes smaller by a thousandth would stay as it is. Here
// the same token comes again and again, so that nothing but the states themselves changes.
TEST_F(SelectiveScanStepCuda, SlowDecaysAreRightInTheMean) {
  constexpr int kSteps = 400;
  constexpr float kRate = 0x1p-10F;
  ScanProblem p = random_step({.batch = 1, .d_inner = 512, .dt_softplus = false}, DType::f32);
  p.dt_bias.clear();
  std::fill(p.dt.begin(), p.dt.end(), kRate);
  std::fill(p.A.begin(), p.A.end(), -1.0F);
  std::fill(p.x.begin(), p.x.end(), 0.0F);
  p.states = test::rounded(test::Random(1).uniforms(512 * 16, -1, 1), DType::bf16);
  double before = 0;
  for (float v : p.states) before += std::abs(v);
  const DeviceStep call(p, DType::f32, 0, 0, DType::bf16);
  for (int step = 0; step < kSteps; ++step) cuda::selective_scan_step(call.args, nullptr);
  double after = 0;
  for (float v : call.result().states) after += std::abs(v);
  const double truth = before * std::exp(-kSteps * static_cast<double>(kRate));
  // Of elements below 1: the errors of a step are below 2^-8 and of random sign.
  const double deviation = 0x1p-9 * std::sqrt(kSteps * static_cast<double>(p.states.size()));
  EXPECT_NEAR(after, truth, 5 * deviation);
  EXPECT_GT(before - truth, 40 * deviation);  // else it would show nothing
}

TEST_F(SelectiveScanStepCuda, NoSequencesAreNoWork) {
  const ScanProblem p = random_step({.batch = 0, .d_inner = 8}, DType::f32);
  EXPECT_TRUE(run(DeviceStep(p, DType::f32)).y.empty());
}

TEST_F(SelectiveScanStepCuda, ARowEqualsTheRowAlone) {  // known bug 13
  for (DType state_dtype : kStateDTypes) {
    for (std::size_t d_inner : {128U, 130U}) {
      const ScanProblem p = random_step({.batch = 5, .d_inner = static_cast<std::int64_t>(d_inner)},
                                        DType::bf16, true, state_dtype);
      const Output all = run(DeviceStep(p, DType::bf16, 0, 0, state_dtype));
      for (std::int64_t b = 0; b < 5; ++b) {
        const ScanProblem row = p.part(b, b + 1, p.state_of(b));
        const Output one = run(DeviceStep(row, DType::bf16, 0, 0, state_dtype));
        const auto at = static_cast<std::size_t>(b) * d_inner;
        EXPECT_TRUE(test::same_bits(one.y, std::span(all.y).subspan(at, d_inner)));
        EXPECT_TRUE(
            test::same_bits(one.states, std::span(all.states).subspan(at * 16, d_inner * 16)));
      }
    }
  }
}

// Known bugs 3 and 4. One token after another, against the recurrence over all of them.
TEST_F(SelectiveScanStepCuda, StepsEqualTheRecurrence) {
  constexpr std::int64_t kTokens = 24;
  for (std::int64_t dstate : {5, 16, 40}) {
    const ScanProblem whole =
        ScanProblem{.seqlen = kTokens, .d_inner = 90, .dstate = dstate, .ngroups = 2}.fill();
    std::vector<float> y;
    std::vector<float> state = whole.states;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const Output out = run(DeviceStep(whole.part(t, t + 1, state), DType::f32));
      y.insert(y.end(), out.y.begin(), out.y.end());
      state = out.states;
    }
    const auto truth = whole.reference<double>();
    const auto plain = whole.reference<float>();
    EXPECT_TRUE(test::as_good_as_plain(y, truth.y, plain.y));
    EXPECT_TRUE(test::as_good_as_plain(state, truth.states, plain.states));
  }
}

// Decoding goes on from where a prompt's scan ends as if it had scanned on.
TEST_F(SelectiveScanStepCuda, StepsGiveTheBitsOfAScan) {
  for (DType dtype : kDTypes) {
    for (std::int64_t dstate : {5, 12, 16, 40, 100}) {
      for (bool dt_softplus : {true, false}) {
        ScanProblem whole{.seqlen = 25,
                          .d_inner = 66,
                          .dstate = dstate,
                          .ngroups = 2,
                          .dt_softplus = dt_softplus};
        test::random_scan(whole, dtype);
        std::vector<float> state = whole.states;
        for (std::int64_t t = 0; t < whole.seqlen; ++t) {
          state = run(DeviceStep(whole.part(t, t + 1, state), dtype)).states;
          if (t != 0 && t != 15 && t != 24) continue;
          const ScanProblem scanned = whole.part(0, t + 1, whole.states);
          EXPECT_TRUE(test::same_bits(state, test::DeviceScan(scanned, dtype).run().states))
              << name_of(dtype) << " dstate " << dstate << " tokens " << t + 1;
        }
      }
    }
  }
}

TEST_F(SelectiveScanStepCuda, AMisalignedAGivesTheSameState) {
  for (DType dtype : kDTypes) {
    for (std::int64_t dstate : {12, 16}) {
      const ScanProblem p = random_step({.batch = 2, .d_inner = 33, .dstate = dstate}, dtype);
      const Output aligned = run(DeviceStep(p, dtype));
      const Output got = run(DeviceStep(p, dtype, 0, 1));
      EXPECT_TRUE(test::same_bits(got.states, aligned.states));
      // y is summed in another order.
      const auto truth = reference<double>(p);
      const auto plain = reference<float>(p);
      EXPECT_TRUE(test::as_good_as_plain(got.y, truth.y, test::rounded(plain.y, dtype)));
    }
  }
}

TEST_F(SelectiveScanStepCuda, DtOfZeroKeepsTheState) {
  for (DType dtype : kDTypes) {
    for (bool dt_softplus : {false, true}) {
      for (DType state_dtype : kStateDTypes) {
        ScanProblem p = random_step({.batch = 2, .d_inner = 20, .dt_softplus = dt_softplus}, dtype,
                                    true, state_dtype);
        p.dt_bias.clear();
        // softplus(-200) is 0 in float32.
        std::fill(p.dt.begin(), p.dt.end(), dt_softplus ? -200.0F : 0.0F);
        p.A[5] = -INFINITY;
        const Output got = run(DeviceStep(p, dtype, 0, 0, state_dtype));
        EXPECT_TRUE(test::same_bits(got.states, p.states));
      }
    }
  }
}

TEST_F(SelectiveScanStepCuda, ExtremeValuesGiveNoNaN) {  // known bug 8
  for (DType dtype : kDTypes) {
    for (float dt : {-1e4F, -100.0F, 0.0F, 1.0F, 100.0F, 1e4F}) {
      for (float A : {-1e-30F, -1.0F, -100.0F, -1e4F, -1e30F, -3e38F, -INFINITY}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " dt " << dt << " A " << A);
        ScanProblem p = random_step({.batch = 1, .d_inner = 51}, dtype);
        p.dt_bias.clear();
        std::fill(p.x.begin(), p.x.end(), 0x1p-7F);  // y stays in the range of f16
        std::fill(p.dt.begin(), p.dt.end(), dt);
        p.dt = test::rounded(p.dt, dtype);
        std::fill(p.A.begin(), p.A.end(), A);
        const Output got = run(DeviceStep(p, dtype));
        for (float y : got.y) EXPECT_TRUE(std::isfinite(y));
        for (float h : got.states) EXPECT_TRUE(std::isfinite(h));
        // A subnormal dt times such an A is neither 0 nor large, but has no digits.
        if (dt == -100 && A < -1e30F) continue;
        // The definition has NaN for 0 times infinity; here dt = 0 keeps the state.
        if (std::isinf(A)) std::fill(p.A.begin(), p.A.end(), -1e30F);
        const auto truth = reference<double>(p);
        const auto plain = reference<float>(p);
        EXPECT_TRUE(test::as_good_as_plain(got.y, truth.y, test::rounded(plain.y, dtype)));
        EXPECT_TRUE(test::as_good_as_plain(got.states, truth.states, plain.states,
                                           dtype == DType::f32 ? 1e-6 : 1e-5));
      }
    }
  }
}

TEST_F(SelectiveScanStepCuda, NaNShowsInItsChannelAlone) {
  for (DType dtype : kDTypes) {
    for (auto member : {&ScanProblem::x, &ScanProblem::dt}) {
      for (DType state_dtype : kStateDTypes) {
        ScanProblem p = random_step({.batch = 1, .d_inner = 20}, dtype, true, state_dtype);
        (p.*member)[7] = std::nanf("");
        const Output got = run(DeviceStep(p, dtype, 0, 0, state_dtype));
        for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(got.y[i]), i == 7) << i;
        for (std::size_t i = 0; i < got.states.size(); ++i) {
          EXPECT_EQ(std::isnan(got.states[i]), i / 16 == 7) << i;
        }
      }
    }
    // A that is NaN does not pass for a large one.
    ScanProblem p = random_step({.batch = 1, .d_inner = 20}, dtype);
    p.A[7 * 16 + 3] = std::nanf("");
    const Output got = run(DeviceStep(p, dtype));
    for (std::size_t i = 0; i < got.states.size(); ++i) {
      EXPECT_EQ(!std::isfinite(got.states[i]), i == 7 * 16 + 3) << i;
    }
  }
}

TEST_F(SelectiveScanStepCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (const auto& [dtype, state_dtype] :
       {std::pair{DType::f32, DType::f32}, std::pair{DType::bf16, DType::f32},
        std::pair{DType::f16, DType::f32}, std::pair{DType::bf16, DType::bf16}}) {
    DeviceStep call(random_step({.batch = 3, .d_inner = 200}, dtype, true, state_dtype), dtype, 0,
                    0, state_dtype);
    const Output expected = run(call);
    call.reset();
    const Output again = run(call);
    EXPECT_TRUE(test::same_bits(again.y, expected.y));
    EXPECT_TRUE(test::same_bits(again.states, expected.states));
    const cuda::OwnedStream stream;
    const cuda::Graph graph(stream, [&] { cuda::selective_scan_step(call.args, stream); });
    for (int replay = 0; replay < 2; ++replay) {
      call.reset();
      graph.launch(stream);
      const Output captured = call.result(stream);
      EXPECT_TRUE(test::same_bits(captured.y, expected.y));
      EXPECT_TRUE(test::same_bits(captured.states, expected.states));
    }
  }
}

// One wide row per sequence: x, z, dt, B, C; y takes the place of x, or z, or dt.
TEST_F(SelectiveScanStepCuda, StridedViewsAndOutputInPlace) {
  constexpr std::int64_t kInner = 72;
  constexpr std::int64_t kRow = 3 * kInner + 2 * 16 + 16;
  for (DType dtype : kDTypes) {
    for (std::int64_t shift : {0, 3}) {
      const ScanProblem p = random_step({.batch = 3, .d_inner = kInner}, dtype);
      // Rows of the state that are not aligned are summed in another order.
      const Output expected = run(DeviceStep(p, dtype, shift == 0 ? 0 : 1));
      std::vector<float> start(3 * kRow, -7.0F);
      std::vector<std::int64_t> columns;
      std::int64_t column = 8 + shift;
      for (const auto& [values, width] :
           {std::pair{&p.x, kInner}, std::pair{&p.z, kInner}, std::pair{&p.dt, kInner},
            std::pair{&p.B, std::int64_t{16}}, std::pair{&p.C, std::int64_t{16}}}) {
        for (std::int64_t b = 0; b < 3; ++b) {
          std::copy_n(values->begin() + b * width, width, start.begin() + b * kRow + column);
        }
        columns.push_back(column);
        column += width;
      }
      for (std::size_t over = 0; over < 3; ++over) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " shift " << shift << " over " << over);
        const DeviceBuffer rows(dtype, start);
        const TensorView all = rows.view({3, kRow});
        std::vector<float> states(3 * kInner * 24, -7.0F);
        const auto state_place = [&](std::size_t i) {
          return i / 16 * 24 + static_cast<std::size_t>(shift) + i % 16;
        };
        for (std::size_t i = 0; i < p.states.size(); ++i) states[state_place(i)] = p.states[i];
        const DeviceBuffer state_rows(DType::f32, states);
        DeviceStep call(p, dtype);
        call.args.x = all.narrow(1, columns[0], kInner);
        call.args.z = all.narrow(1, columns[1], kInner);
        call.args.dt = all.narrow(1, columns[2], kInner);
        call.args.B = all.narrow(1, columns[3], 16).split_last(1);
        call.args.C = all.narrow(1, columns[4], 16).split_last(1);
        call.args.y = all.narrow(1, columns[over], kInner);
        call.args.state = state_rows.view({3, kInner, 24}).narrow(2, shift, 16);
        cuda::selective_scan_step(call.args, nullptr);
        std::vector<float> wanted = start;
        for (std::int64_t b = 0; b < 3; ++b) {
          std::copy_n(expected.y.begin() + b * kInner, kInner,
                      wanted.begin() + b * kRow + columns[over]);
        }
        for (std::size_t i = 0; i < p.states.size(); ++i) {
          states[state_place(i)] = expected.states[i];
        }
        EXPECT_TRUE(test::same_bits(rows.values(), test::rounded(wanted, dtype)));
        EXPECT_TRUE(test::same_bits(state_rows.values(), states));
      }
    }
  }
}

TEST_F(SelectiveScanStepCuda, OffsetsBeyond32Bits) {  // known bug 12
  const std::int64_t size = test::kBeyond32Bits + 64;
  if (cuda::properties(cuda::current_device()).memory_bytes < 5 * size) {
    GTEST_SKIP() << "no device memory for " << 4 * size << " bytes";
  }
  const Tensor memory = cuda::empty(DType::f32, std::array{size});
  TensorView rows = memory.view;
  rows.rank = 2;
  rows.shape = {2, 64};
  rows.strides = {test::kBeyond32Bits, 1};
  const auto write = [&](std::int64_t row, const std::vector<float>& values) {
    cuda::copy_to_device(rows[row].data, values.data(), values.size() * 4, nullptr);
  };
  write(0, {0, 0, 0, 0, -1, 0});
  write(1, {3, 2, 5, 7, -1, 0});  // x, dt, B, C, y, state
  const DeviceBuffer A(DType::f32, std::vector<float>{-1.0F});
  const auto column = [&](std::int64_t c) { return rows.narrow(1, c, 1); };
  cuda::selective_scan_step({.x = column(0),
                             .dt = column(1),
                             .A = A.view({1, 1}),
                             .B = column(2).split_last(1),
                             .C = column(3).split_last(1),
                             .state = column(5).split_last(1),
                             .y = column(4),
                             .dt_softplus = false},
                            nullptr);
  std::vector<float> got(6);
  cuda::copy_to_host(got.data(), rows[0].data, 24, nullptr);
  EXPECT_EQ(got[4], 0.0F);
  cuda::copy_to_host(got.data(), rows[1].data, 24, nullptr);
  EXPECT_EQ(got[4], 210.0F);
  EXPECT_EQ(got[5], 30.0F);
}

// ---- what needs no device -----------------------------------------------------------------------

SelectiveScanStepArgs device_args() {
  static std::byte memory[64];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  SelectiveScanStepArgs args;
  args.x = view(DType::bf16, {2, 8});
  args.dt = args.x;
  args.A = view(DType::f32, {8, 4});
  args.B = view(DType::bf16, {2, 2, 4});
  args.C = args.B;
  args.state = view(DType::f32, {2, 8, 4});
  args.y = view(DType::bf16, {2, 8});
  return args;
}

TEST(SelectiveScanStepCudaErrors, NameTheArgumentThatIsWrong) {
  const auto error_of = [](auto&& change) {
    SelectiveScanStepArgs args = device_args();
    change(args);
    return test::error_of([&] { validate(args); });
  };
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& args) { args.dt.dtype = DType::f32; }),
            "selective_scan_step: dt has dtype f32, expected bf16");
  EXPECT_EQ(error_of([](auto& args) { args.state.dtype = DType::bf16; }), "no error");
  EXPECT_EQ(error_of([](auto& args) { args.state.dtype = DType::f16; }),
            "selective_scan_step: state has dtype f16, expected f32 or bf16");
  EXPECT_EQ(error_of([](auto& args) { args.state.device = {}; }),
            "selective_scan_step: state is in host memory, expected it in memory of CUDA device 0");
}

TEST(SelectiveScanStepCudaErrors, EachDeviceHasItsEntry) {
  ThreadPool pool(1);
  EXPECT_EQ(test::error_of([&] { cpu::selective_scan_step(device_args(), pool); }),
            "selective_scan_step: x is in memory of CUDA device 0, expected it in host memory");
  std::vector<float> memory(16);
  const auto view = [&](std::initializer_list<std::int64_t> dims) {
    return TensorView::of(memory.data(), dims);
  };
  EXPECT_EQ(test::error_of([&] {
              cuda::selective_scan_step({.x = view({1, 2}),
                                         .dt = view({1, 2}),
                                         .A = view({2, 1}),
                                         .B = view({1, 1, 1}),
                                         .C = view({1, 1, 1}),
                                         .state = view({1, 2, 1}),
                                         .y = view({1, 2})},
                                        nullptr);
            }),
            "selective_scan_step: x is in host memory, expected it in memory of a CUDA device");
}

}  // namespace
}  // namespace adder
