// selective_scan on a CUDA device against the recurrence.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/selective_scan/test_device.h"
#include "tests/support/compare.h"
#include "tests/support/pooled.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using SelectiveScanCuda = test::OnDevice;
using test::append;
using test::DeviceBuffer;
using test::DeviceScan;
using test::kScanDTypes;
using test::Pooled;
using test::random_scan;
using test::ScanOutput;
using test::ScanPools;
using test::ScanProblem;

TEST_F(SelectiveScanCuda, AsGoodAsPlainLoopsInEveryDtypeAndSize) {
  for (DType dtype : kScanDTypes) {
    int round = 0;
    for (std::int64_t dstate : {1, 5, 8, 16, 17, 32, 64, 100, 128, 256}) {
      ScanPools pools(dtype);
      for (std::int64_t d_inner : {1, 3, 64, 65, 132}) {
        for (std::int64_t seqlen : {0, 1, 4, 15, 16, 17, 50}) {
          ScanProblem p{.batch = 1 + round % 2,
                        .seqlen = seqlen,
                        .d_inner = d_inner,
                        .dstate = dstate,
                        .dt_softplus = round % 4 != 0};
          random_scan(p, dtype, round % 5 != 0);
          const int misalignment = round % 3 == 0 ? 1 : 0;
          ++round;
          pools.add(p, DeviceScan(p, dtype, misalignment).run(),
                    fmt::format("{} batch {} seqlen {} d_inner {} dstate {} softplus {} options {} "
                                "misalignment {}",
                                name_of(dtype), p.batch, seqlen, d_inner, dstate, p.dt_softplus,
                                !p.D.empty(), misalignment));
        }
      }
      pools.expect_right();
    }
  }
}

// Few channels and many tokens: several segments a sequence on any device.
TEST_F(SelectiveScanCuda, ALongSequenceInSegments) {
  for (DType dtype : kScanDTypes) {
    for (std::int64_t dstate : {16, 20, 64, 128, 200}) {
      ScanPools pools(dtype);
      for (std::int64_t seqlen : {255, 256, 300, 3000}) {
        if (dstate > 20 && seqlen != 300) continue;
        ScanProblem p{.batch = 2, .seqlen = seqlen, .d_inner = 16, .dstate = dstate};
        random_scan(p, dtype);
        for (float& v : p.A) v /= 50;  // a memory of many tokens
        pools.add(p, DeviceScan(p, dtype).run(),
                  fmt::format("{} dstate {} seqlen {}", name_of(dtype), dstate, seqlen));
      }
      pools.expect_right();
    }
  }
}

TEST_F(SelectiveScanCuda, GroupsAsGoodAsPlainLoops) {
  for (DType dtype : kScanDTypes) {
    ScanPools pools(dtype);
    for (std::int64_t ngroups : {2, 3, 6, 66, 132}) {
      for (std::int64_t dstate : {6, 16, 128}) {
        ScanProblem p{.seqlen = 21, .d_inner = 132, .dstate = dstate, .ngroups = ngroups};
        random_scan(p, dtype);
        pools.add(p, DeviceScan(p, dtype).run(),
                  fmt::format("{} groups {} dstate {}", name_of(dtype), ngroups, dstate));
      }
    }
    pools.expect_right();
  }
}

// Known bugs 3 and 4: more than one token with a cache drops history; an incoming state ignored.
TEST_F(SelectiveScanCuda, ASplitEqualsOnePass) {
  for (std::int64_t seqlen : {70, 1100}) {
    for (std::int64_t dstate : {5, 16, 40}) {
      ScanProblem whole{.seqlen = seqlen, .d_inner = 19, .dstate = dstate};
      random_scan(whole, DType::f32);
      const ScanOutput pass = DeviceScan(whole, DType::f32).run();
      for (std::int64_t split : {1, 15, 16, 17, 33, 69}) {
        SCOPED_TRACE(::testing::Message() << "dstate " << dstate << " split " << split);
        ScanOutput head = DeviceScan(whole.part(0, split, whole.states), DType::f32).run();
        const ScanOutput tail =
            DeviceScan(whole.part(split, seqlen, head.states), DType::f32).run();
        append(head.y, tail.y);
        EXPECT_TRUE(test::all_close(head.y, test::to_double(pass.y), 1e-5));
        EXPECT_TRUE(test::all_close(tail.states, test::to_double(pass.states), 1e-5));
      }
    }
  }
}

TEST_F(SelectiveScanCuda, AbsentStatesAreZerosAndNotWritten) {
  for (std::int64_t seqlen : {5, 700}) {
    ScanProblem p{.batch = 2, .seqlen = seqlen, .d_inner = 20};
    random_scan(p, DType::f32);
    std::fill(p.states.begin(), p.states.end(), 0.0F);
    const ScanOutput expected = DeviceScan(p, DType::f32).run();
    DeviceScan call(p, DType::f32);
    call.args.initial_states = {};
    call.poison_states();
    const ScanOutput got = call.run();
    EXPECT_TRUE(test::same_bits(got.y, expected.y));
    EXPECT_TRUE(test::same_bits(got.states, expected.states));
    call.args.final_states = {};
    call.poison_states();
    const ScanOutput without = call.run();
    EXPECT_TRUE(test::same_bits(without.y, expected.y));
    for (float state : without.states) EXPECT_TRUE(std::isnan(state));
  }
}

TEST_F(SelectiveScanCuda, InitialStatesAreOnlyRead) {
  for (std::int64_t seqlen : {5, 700}) {
    ScanProblem p{.seqlen = seqlen, .d_inner = 20};
    random_scan(p, DType::f32);
    const ScanOutput in_place = DeviceScan(p, DType::f32).run();
    DeviceScan call(p, DType::f32);
    const DeviceBuffer initial(DType::f32, p.states);
    call.args.initial_states = initial.view({1, 20, 16});
    call.poison_states();
    const ScanOutput apart = call.run();
    EXPECT_TRUE(test::same_bits(apart.y, in_place.y));
    EXPECT_TRUE(test::same_bits(apart.states, in_place.states));
    EXPECT_TRUE(test::same_bits(initial.values(), p.states));
  }
}

// ---- properties of the recurrence ---------------------------------------------------------------

TEST_F(SelectiveScanCuda, ATokenDoesNotSeeLaterTokensOrOtherChannels) {
  for (const auto& [seqlen, seen] : {std::pair{50, std::size_t{30}}, {700, 300}, {700, 576}}) {
    for (float later : {1e20F, std::nanf("")}) {
      SCOPED_TRACE(::testing::Message() << "seqlen " << seqlen << " seen " << seen);
      ScanProblem p{.seqlen = seqlen, .d_inner = 35};
      random_scan(p, DType::f32);
      ScanProblem changed = p;
      for (std::size_t i = seen * 35; i < changed.x.size(); ++i) changed.x[i] = later;
      for (std::size_t i = seen * 16; i < changed.B.size(); ++i) changed.B[i] = changed.C[i] = -5;
      for (std::size_t t = 0; t < seen; ++t) changed.x[t * 35 + 7] = changed.dt[t * 35 + 7] = 4;
      std::vector<float> y = DeviceScan(p, DType::f32).run().y;
      std::vector<float> other = DeviceScan(changed, DType::f32).run().y;
      y.resize(seen * 35);
      other.resize(seen * 35);
      for (std::size_t t = 0; t < seen; ++t) y[t * 35 + 7] = other[t * 35 + 7] = 0;
      EXPECT_TRUE(test::same_bits(y, other));
    }
  }
}

TEST_F(SelectiveScanCuda, DtOfZeroKeepsTheState) {
  for (DType dtype : kScanDTypes) {
    for (bool dt_softplus : {false, true}) {
      for (std::int64_t seqlen : {40, 700}) {
        ScanProblem p{.seqlen = seqlen, .d_inner = 20, .dt_softplus = dt_softplus};
        random_scan(p, dtype);
        p.dt_bias.clear();
        // softplus(-200) is 0 in float32.
        std::fill(p.dt.begin(), p.dt.end(), dt_softplus ? -200.0F : 0.0F);
        p.A[5] = -INFINITY;
        EXPECT_TRUE(test::same_bits(DeviceScan(p, dtype).run().states, p.states));
      }
    }
  }
}

// Known bug 8. No multiple of the tokens that are scanned at once, and several segments.
TEST_F(SelectiveScanCuda, ExtremeValuesGiveNoNaN) {
  for (DType dtype : kScanDTypes) {
    for (std::int64_t seqlen : {41, 700}) {
      for (float dt : {-1e4F, -100.0F, 0.0F, 1.0F, 100.0F, 1e4F}) {
        for (float A : {-1e-30F, -1.0F, -100.0F, -1e4F, -1e30F, -3e38F, -INFINITY}) {
          ScanProblem p{.seqlen = seqlen, .d_inner = 17};
          random_scan(p, dtype);
          p.dt_bias.clear();
          std::fill(p.dt.begin(), p.dt.end(), dt);
          p.dt = test::rounded(p.dt, dtype);
          std::fill(p.A.begin(), p.A.end(), A);
          // What stays in the range of f16 after tokens that forget nothing.
          std::fill(p.x.begin(), p.x.end(), seqlen == 41 ? 0x1p-7F : 0x1p-12F);
          std::fill(p.B.begin(), p.B.end(), 0.5F);
          std::fill(p.C.begin(), p.C.end(), 0.5F);
          SCOPED_TRACE(::testing::Message()
                       << name_of(dtype) << " seqlen " << seqlen << " dt " << dt << " A " << A);
          const ScanOutput got = DeviceScan(p, dtype).run();
          for (float y : got.y) EXPECT_TRUE(std::isfinite(y));
          for (float h : got.states) EXPECT_TRUE(std::isfinite(h));
          // A subnormal dt times such an A is neither 0 nor large, but has no digits.
          if (dt == -100 && A < -1e30F) continue;
          // The definition has NaN for 0 times infinity; here dt = 0 keeps the state.
          if (std::isinf(A)) std::fill(p.A.begin(), p.A.end(), -1e30F);
          ScanPools pools(dtype);
          pools.add(p, got, "");
          pools.expect_right();
        }
      }
    }
  }
}

TEST_F(SelectiveScanCuda, NaNShowsInItsChannelAlone) {
  for (DType dtype : kScanDTypes) {
    for (auto member : {&ScanProblem::x, &ScanProblem::dt}) {
      for (const auto& [seqlen, token] :
           {std::pair{20, std::size_t{3}}, {700, 3}, {700, 143}, {700, 144}, {700, 699}}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " token " << token);
        ScanProblem p{.seqlen = seqlen, .d_inner = 8};
        random_scan(p, dtype);
        (p.*member)[token * 8 + 5] = std::nanf("");
        const ScanOutput got = DeviceScan(p, dtype).run();
        for (std::size_t i = 0; i < got.y.size(); ++i) {
          EXPECT_EQ(std::isnan(got.y[i]), i % 8 == 5 && i / 8 >= token) << i;
        }
        for (std::size_t i = 0; i < got.states.size(); ++i) {
          EXPECT_EQ(std::isnan(got.states[i]), i / 16 == 5) << i;
        }
      }
    }
  }
}

// A that is NaN does not pass for a large one.
TEST_F(SelectiveScanCuda, ANaNInAShows) {
  for (DType dtype : kScanDTypes) {
    for (std::int64_t seqlen : {20, 700}) {
      ScanProblem p{.seqlen = seqlen, .d_inner = 8};
      random_scan(p, dtype);
      p.A[3 * 16 + 7] = std::nanf("");
      const ScanOutput got = DeviceScan(p, dtype).run();
      for (std::size_t i = 0; i < got.states.size(); ++i) {
        EXPECT_EQ(!std::isfinite(got.states[i]), i == 3 * 16 + 7) << i;
      }
    }
  }
}

TEST_F(SelectiveScanCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (DType dtype : kScanDTypes) {
    for (std::int64_t d_inner : {20, 6000}) {  // with and without segments
      ScanProblem p{.batch = 2, .seqlen = d_inner == 20 ? 900 : 40, .d_inner = d_inner};
      random_scan(p, dtype);
      DeviceScan call(p, dtype);
      const ScanOutput expected = call.run();
      call.reset();
      const ScanOutput again = call.run();
      EXPECT_TRUE(test::same_bits(again.y, expected.y));
      EXPECT_TRUE(test::same_bits(again.states, expected.states));
      const cuda::OwnedStream stream;
      const cuda::Graph graph(stream, [&] { call.launch(stream); });
      for (int replay = 0; replay < 2; ++replay) {
        call.reset();
        graph.launch(stream);
        const ScanOutput captured = call.result(stream);
        EXPECT_TRUE(test::same_bits(captured.y, expected.y));
        EXPECT_TRUE(test::same_bits(captured.states, expected.states));
      }
    }
  }
}

// ---- views --------------------------------------------------------------------------------------

// One wide row per token, as in_proj and x_proj write it: x, z, dt, B, C, y.
TEST_F(SelectiveScanCuda, StridedViewsLeaveTheGapsAlone) {
  constexpr std::int64_t kInner = 40;
  constexpr std::int64_t kRow = 4 * kInner + 2 * 16 + 16;
  for (DType dtype : kScanDTypes) {
    for (std::int64_t shift : {0, 3}) {  // 3: no row is aligned
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " shift " << shift);
      ScanProblem p{.batch = 2, .seqlen = 19, .d_inner = kInner};
      random_scan(p, dtype);
      const ScanOutput expected = DeviceScan(p, dtype).run();
      std::vector<float> memory(2 * 19 * kRow, -7.0F);
      std::vector<std::int64_t> columns;
      std::int64_t column = 8 + shift;
      const auto place = [&](const std::vector<float>& v, std::int64_t width) {
        for (std::int64_t t = 0; t < 2 * 19; ++t) {
          std::copy_n(v.begin() + t * width, width, memory.begin() + t * kRow + column);
        }
        columns.push_back(column);
        column += width;
      };
      place(p.x, kInner);
      place(p.z, kInner);
      place(p.dt, kInner);
      place(p.B, 16);
      place(p.C, 16);
      const DeviceBuffer rows(dtype, memory);
      const TensorView all = rows.view({2, 19, kRow});
      std::vector<float> states(2 * kInner * 24, -7.0F);
      for (std::size_t i = 0; i < p.states.size(); ++i) {
        states[i / 16 * 24 + static_cast<std::size_t>(shift) + i % 16] = p.states[i];
      }
      const DeviceBuffer state_rows(DType::f32, states);
      DeviceScan call(p, dtype);
      call.args.x = all.narrow(2, columns[0], kInner);
      call.args.z = all.narrow(2, columns[1], kInner);
      call.args.dt = all.narrow(2, columns[2], kInner);
      call.args.B = all.narrow(2, columns[3], 16).split_last(1);
      call.args.C = all.narrow(2, columns[4], 16).split_last(1);
      call.args.y = all.narrow(2, column, kInner);
      call.args.final_states = state_rows.view({2, kInner, 24}).narrow(2, shift, 16);
      call.args.initial_states = call.args.final_states;
      call.launch(nullptr);
      for (std::int64_t t = 0; t < 2 * 19; ++t) {
        std::copy_n(expected.y.begin() + t * kInner, kInner, memory.begin() + t * kRow + column);
      }
      for (std::size_t i = 0; i < p.states.size(); ++i) {
        states[i / 16 * 24 + static_cast<std::size_t>(shift) + i % 16] = expected.states[i];
      }
      EXPECT_TRUE(test::same_bits(rows.values(), test::rounded(memory, dtype)));
      EXPECT_TRUE(test::same_bits(state_rows.values(), states));
    }
  }
}

TEST_F(SelectiveScanCuda, InPlaceOverXOrDtOrZ) {
  for (DType dtype : kScanDTypes) {
    for (std::int64_t seqlen : {70, 700}) {
      ScanProblem p{.seqlen = seqlen, .d_inner = 20};
      random_scan(p, dtype);
      const ScanOutput expected = DeviceScan(p, dtype).run();
      for (auto member : {&SelectiveScanArgs::x, &SelectiveScanArgs::dt, &SelectiveScanArgs::z}) {
        DeviceScan call(p, dtype);
        const ConstTensorView& over = call.args.*member;
        call.args.y = TensorView(const_cast<void*>(over.data), dtype, over.dims(), over.device);
        call.launch(nullptr);
        const Tensor host = cuda::to_host(call.args.y);
        const Tensor got = convert(host.view, DType::f32);
        EXPECT_TRUE(test::same_bits(got.span<float>(), expected.y)) << name_of(dtype);
      }
    }
  }
}

TEST_F(SelectiveScanCuda, OffsetsBeyond32Bits) {  // known bug 12
  const std::int64_t size = test::kBeyond32Bits + 64;
  if (cuda::properties(cuda::current_device()).memory_bytes < 3 * size) {
    GTEST_SKIP() << "no device memory for " << 2 * size << " bytes";
  }
  const Tensor memory = cuda::empty(DType::bf16, std::array{size});
  TensorView rows = memory.view;
  rows.rank = 3;
  rows.shape = {1, 2, 64};
  rows.strides = {size, test::kBeyond32Bits, 1};
  const auto write = [&](std::int64_t token, const std::vector<float>& values) {
    const auto bytes = test::encode(values, DType::bf16);
    cuda::copy_to_device(rows[0][token].data, bytes.data(), bytes.size(), nullptr);
  };
  write(0, {0, 0, 0, 0});
  write(1, {3, 2, 5, 7});  // x, dt, B, C
  const DeviceBuffer A(DType::f32, std::vector<float>{-1.0F});
  const auto column = [&](std::int64_t c) { return rows.narrow(2, c, 1); };
  cuda::selective_scan({.x = column(0),
                        .dt = column(1),
                        .A = A.view({1, 1}),
                        .B = column(2).split_last(1),
                        .C = column(3).split_last(1),
                        .y = column(4),
                        .dt_softplus = false},
                       {}, nullptr);
  const Tensor first = cuda::to_host(rows[0][0].narrow(0, 4, 1));
  const Tensor second = cuda::to_host(rows[0][1].narrow(0, 4, 1));
  EXPECT_EQ(to_float(*first.as<bf16>()), 0.0F);
  EXPECT_EQ(to_float(*second.as<bf16>()), 210.0F);
}

}  // namespace
}  // namespace adder
