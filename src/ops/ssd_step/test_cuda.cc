// ssd_step on a CUDA device.

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/ssd_step/test_device.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/pooled.h"
#include "tests/support/state_rounding.h"

namespace adder {
namespace {

using SsdStepCuda = test::OnDevice;
using test::DeviceBuffer;
using test::Pooled;
using test::same_bits;
using test::StepCase;
using test::StepOnDevice;
using test::StepOutput;
using test::StepShape;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kStateDTypes[] = {DType::f32, DType::bf16};

StepOutput run(const StepOnDevice& step) {
  cuda::ssd_step(step.args, nullptr);
  return step.result();
}

// Many cases, judged together: see Pooled.
class Cases {
 public:
  void add(const StepCase& c, std::int64_t misalignment = 0) {
    const StepOutput got = run(StepOnDevice(c, misalignment));
    std::vector<double> y64;
    std::vector<double> state64;
    std::vector<float> y32;
    std::vector<float> state32;
    c.reference(y64, state64);
    c.reference(y32, state32);
    const std::string label = fmt::format("batch {} heads {} of {} dstate {} {} misalignment {}",
                                          c.shape.batch, c.shape.nheads, c.shape.headdim,
                                          c.shape.dstate, name_of(c.shape.dtype), misalignment);
    y_.add(got.y, y64, test::rounded(y32, c.shape.dtype), label + " y");
    if (c.shape.state_dtype == DType::bf16) {
      EXPECT_TRUE(test::are_neighbours(got.state, state64, test::slack_of(state32, state64)))
          << label;
    } else {
      state_.add(got.state, state64, state32, label + " state");
    }
    is_float_ = c.shape.state_dtype == DType::f32;
  }
  void expect_right() const {
    EXPECT_TRUE(y_.as_good_as_plain());
    if (is_float_) {
      EXPECT_TRUE(state_.as_good_as_plain());
    }
  }

 private:
  Pooled y_, state_;
  bool is_float_ = true;  // the states of all cases
};

TEST_F(SsdStepCuda, AsGoodAsPlainLoopsInEverySizeAndDtype) {
  for (DType dtype : kDTypes) {
    for (DType state_dtype : kStateDTypes) {
      for (std::int64_t dstate : {1, 3, 16, 100, 127, 128, 129, 512}) {
        Cases cases;
        for (std::int64_t headdim : {1, 3, 4, 15, 16, 17, 64}) {
          for (std::int64_t misalignment : {0, 1}) {
            cases.add(StepCase({.headdim = headdim,
                                .dstate = dstate,
                                .dtype = dtype,
                                .state_dtype = state_dtype}),
                      misalignment);
          }
        }
        cases.expect_right();
      }
    }
  }
}

TEST_F(SsdStepCuda, EveryBatchAndNumberOfGroups) {
  for (DType dtype : kDTypes) {
    for (DType state_dtype : kStateDTypes) {
      for (std::int64_t ngroups : {1, 2, 8}) {
        Cases cases;
        for (std::int64_t batch : {0, 1, 3, 70}) {
          cases.add(StepCase({.batch = batch,
                              .nheads = 8,
                              .ngroups = ngroups,
                              .dtype = dtype,
                              .state_dtype = state_dtype}));
        }
        cases.expect_right();
      }
    }
  }
}

TEST_F(SsdStepCuda, TakesEveryOption) {
  for (DType dtype : kDTypes) {
    for (int options = 0; options < 128; ++options) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " options " << options);
      StepCase c({.nheads = 3, .headdim = 20, .ngroups = 3, .dstate = 24, .dtype = dtype});
      const Tensor D_per_head = convert(c.dt_bias.view, DType::f32);
      if ((options & 1) != 0) c.args.D = (options & 2) != 0 ? D_per_head.view : ConstTensorView();
      if ((options & 4) != 0) c.args.z = {};
      if ((options & 8) != 0) c.args.dt_bias = {};
      if ((options & 16) != 0) c.args.dt_softplus = false;
      if ((options & 32) != 0) {
        c.args.dt_min = 0.3F;
        c.args.dt_max = 0.7F;
      }
      if ((options & 64) != 0) {
        c.dt = convert(c.dt.view, dtype);
        c.args.dt = c.dt.view;
      }
      Cases cases;
      cases.add(c);
      cases.expect_right();
    }
  }
}

TEST_F(SsdStepCuda, ReadsSlicesOfWiderRows) {
  // As a model calls it: x, B and C are slices of one row of the convolution's output.
  for (std::int64_t gap : {7, 16}) {
    const StepCase c({.batch = 3, .nheads = 4, .headdim = 12, .ngroups = 2, .dstate = 10});
    const StepOutput packed = run(StepOnDevice(c));
    const std::int64_t width = 48 + 20 + 20 + gap;
    std::vector<float> rows(static_cast<std::size_t>(3 * width), std::nanf(""));
    for (std::int64_t b = 0; b < 3; ++b) {
      float* row = rows.data() + b * width;
      std::memcpy(row, c.x.as<float>() + b * 48, 48 * 4);
      std::memcpy(row + 48, c.B.as<float>() + b * 20, 20 * 4);
      std::memcpy(row + 68, c.C.as<float>() + b * 20, 20 * 4);
    }
    const DeviceBuffer memory(DType::f32, rows);
    const ConstTensorView whole = memory.view({3, width});
    StepOnDevice call(c);
    call.args.x = whole.narrow(1, 0, 48).split_last(4);
    call.args.B = whole.narrow(1, 48, 20).split_last(2);
    call.args.C = whole.narrow(1, 68, 20).split_last(2);
    const StepOutput sliced = run(call);
    EXPECT_TRUE(same_bits(sliced.y, packed.y));
    EXPECT_TRUE(same_bits(sliced.state, packed.state));
  }
}

TEST_F(SsdStepCuda, OutputMayBeTheInputOrTheGate) {
  for (DType dtype : kDTypes) {
    const StepCase c({.headdim = 19, .dtype = dtype});
    const StepOutput apart = run(StepOnDevice(c));
    for (bool over_x : {false, true}) {
      StepOnDevice call(c);
      const ConstTensorView& over = over_x ? call.args.x : call.args.z;
      call.args.y = TensorView(const_cast<void*>(over.data), dtype, over.dims(), over.device);
      cuda::ssd_step(call.args, nullptr);
      const Tensor got = convert(cuda::to_host(call.args.y).view, DType::f32);
      EXPECT_TRUE(same_bits(got.span<float>(), apart.y)) << name_of(dtype);
    }
  }
}

void expect_rows_equal_rows_alone(DType state_dtype) {
  const StepShape s{.batch = 5,
                    .nheads = 6,
                    .headdim = 48,
                    .ngroups = 2,
                    .dstate = 64,
                    .state_dtype = state_dtype};
  const StepCase c(s);
  const StepOutput all = run(StepOnDevice(c));
  const std::size_t state_size = 6 * 48 * 64;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    StepCase row = c;
    row.shape.batch = 1;
    for (ConstTensorView* view :
         {&row.args.x, &row.args.z, &row.args.B, &row.args.C, &row.args.dt}) {
      *view = view->narrow(0, b, 1);
    }
    row.x.view = row.x.view.narrow(0, b, 1);
    const auto begin = c.state.begin() + b * static_cast<std::ptrdiff_t>(state_size);
    row.state.assign(begin, begin + static_cast<std::ptrdiff_t>(state_size));
    const StepOutput alone = run(StepOnDevice(row));
    const auto at = static_cast<std::size_t>(b);
    EXPECT_TRUE(same_bits(alone.y, std::span(all.y).subspan(at * 288, 288)));
    EXPECT_TRUE(same_bits(alone.state, std::span(all.state).subspan(at * state_size, state_size)));
  }
}

TEST_F(SsdStepCuda, ARowEqualsTheRowAlone_KnownBug13) {
  for (DType state_dtype : kStateDTypes) expect_rows_equal_rows_alone(state_dtype);
}

TEST_F(SsdStepCuda, ZeroTimeStepKeepsTheState) {
  for (DType dtype : kDTypes) {
    for (DType state_dtype : kStateDTypes) {
      StepCase c({.dtype = dtype, .state_dtype = state_dtype});
      c.args.dt_softplus = false;
      c.args.dt_bias = {};
      for (float& v : c.dt.span<float>()) v = 0;
      EXPECT_TRUE(same_bits(run(StepOnDevice(c)).state, c.state));
    }
  }
}

// Rounded to nearest, a state that a step makes smaller by a thousandth would stay as it is. Here
// the same token comes again and again, so that nothing but the states themselves changes.
TEST_F(SsdStepCuda, SlowDecaysAreRightInTheMean) {
  constexpr int kSteps = 400;
  constexpr float kRate = 0x1p-10F;
  for (std::int64_t misalignment : {0, 1}) {
    StepCase c({.batch = 1, .nheads = 4, .headdim = 32, .dstate = 128, .state_dtype = DType::bf16});
    c.args.dt_softplus = false;
    c.args.dt_bias = {};
    for (float& v : c.dt.span<float>()) v = kRate;
    for (float& v : c.A.span<float>()) v = -1;
    for (float& v : c.x.span<float>()) v = 0;
    double before = 0;
    for (float v : c.state) before += std::abs(v);
    const StepOnDevice call(c, misalignment);
    for (int step = 0; step < kSteps; ++step) cuda::ssd_step(call.args, nullptr);
    double after = 0;
    for (float v : call.result().state) after += std::abs(v);
    const double truth = before * std::exp(-kSteps * static_cast<double>(kRate));
    // Of 16,384 elements below 1: the errors of a step are below 2^-8 and of random sign.
    const double deviation = 0x1p-9 * std::sqrt(kSteps * static_cast<double>(c.state.size()));
    EXPECT_NEAR(after, truth, 5 * deviation);
    EXPECT_GT(before - truth, 50 * deviation);  // else it would show nothing
  }
}

TEST_F(SsdStepCuda, ExtremeDecaysStayFinite_KnownBug8) {
  for (float raw : {-100.0F, 0.0F, 100.0F}) {
    for (bool softplus : {false, true}) {
      StepCase c({});
      for (float& v : c.dt.span<float>()) v = raw;
      for (float& a : c.A.span<float>()) a = -100;  // dt · A of -1e4
      c.args.dt_bias = {};
      c.args.dt_softplus = softplus;
      c.expect_right(run(StepOnDevice(c)));
    }
  }
}

TEST_F(SsdStepCuda, NaNShowsInsteadOfBeingClampedAway) {
  for (DType state_dtype : kStateDTypes) {
    const StepCase c({.state_dtype = state_dtype});
    c.dt.span<float>()[0] = std::nanf("");
    const StepOutput out = run(StepOnDevice(c));
    EXPECT_TRUE(std::isnan(out.y[0]));
    EXPECT_FALSE(std::isnan(out.y[16]));
    EXPECT_TRUE(std::isnan(out.state[0]));
    EXPECT_FALSE(std::isnan(out.state[16 * 16]));
  }
}

void expect_same_bits_again(DType state_dtype) {
  const StepCase c(
      {.batch = 3, .headdim = 64, .dstate = 128, .dtype = DType::bf16, .state_dtype = state_dtype});
  StepOnDevice call(c);
  const StepOutput expected = run(call);
  call.reset();
  const StepOutput again = run(call);
  EXPECT_TRUE(same_bits(again.y, expected.y));
  EXPECT_TRUE(same_bits(again.state, expected.state));
  const cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { cuda::ssd_step(call.args, stream); });
  for (int replay = 0; replay < 2; ++replay) {
    call.reset();
    graph.launch(stream);
    const StepOutput captured = call.result(stream);
    EXPECT_TRUE(same_bits(captured.y, expected.y));
    EXPECT_TRUE(same_bits(captured.state, expected.state));
  }
}

TEST_F(SsdStepCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (DType state_dtype : kStateDTypes) expect_same_bits_again(state_dtype);
}

TEST_F(SsdStepCuda, OffsetsBeyond32Bits_KnownBug12) {
  // Two sequences whose states lie 2^31 elements apart.
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;
  constexpr std::int64_t kSize = 4 * 8;
  std::shared_ptr<std::byte> memory;
  try {
    memory = cuda::allocate(static_cast<std::size_t>(kFar + kSize) * sizeof(float));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const StepCase c({.batch = 2, .nheads = 1, .headdim = 4, .ngroups = 1, .dstate = 8});
  const StepOutput near = run(StepOnDevice(c));
  StepOnDevice call(c);
  TensorView far(memory.get(), DType::f32, {2, 1, 4, 8}, call.args.state.device);
  far.strides[0] = kFar;
  for (std::int64_t b = 0; b < 2; ++b) {
    cuda::copy_to_device(far[b].data, &c.state[static_cast<std::size_t>(b * kSize)], kSize * 4,
                         nullptr);
  }
  call.args.state = far;
  cuda::ssd_step(call.args, nullptr);
  for (std::int64_t b = 0; b < 2; ++b) {
    std::vector<float> got(kSize);
    cuda::copy_to_host(got.data(), far[b].data, kSize * 4, nullptr);
    EXPECT_TRUE(
        same_bits(got, std::span(near.state).subspan(static_cast<std::size_t>(b * kSize), kSize)));
  }
}

// ---- what needs no device -----------------------------------------------------------------------

TEST(SsdStepCudaErrors, NameTheArgumentThatIsWrong) {
  static std::byte memory[64];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
  };
  SsdStepArgs good;
  good.x = view(DType::bf16, {2, 4, 16});
  good.dt = view(DType::bf16, {2, 4});
  good.A = view(DType::f32, {4});
  good.B = view(DType::bf16, {2, 2, 16});
  good.C = good.B;
  good.state = view(DType::f32, {2, 4, 16, 16});
  good.y = view(DType::bf16, {2, 4, 16});
  const auto error_of = [&](auto&& change) {
    SsdStepArgs args = good;
    change(args);
    return test::error_of([&] { validate(args); });
  };
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.dt.dtype = DType::f32; }), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.dt.dtype = DType::f16; }),
            "ssd_step: dt has dtype f16, expected f32 or bf16");
  EXPECT_EQ(error_of([](auto& a) { a.state.dtype = DType::bf16; }), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.state.dtype = DType::f16; }),
            "ssd_step: state has dtype f16, expected f32 or bf16");
  EXPECT_EQ(error_of([](auto& a) { a.state.device = {}; }),
            "ssd_step: state is in host memory, expected it in memory of CUDA device 0");
  ThreadPool pool(1);
  try {
    cpu::ssd_step(good, pool);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "ssd_step: x is in memory of CUDA device 0, expected it in host memory");
  }
  const StepCase host({});
  SsdStepArgs on_host = host.args;
  std::vector<float> y(2 * 4 * 16);
  std::vector<float> state = host.state;
  on_host.y = TensorView::of(y.data(), {2, 4, 16});
  on_host.state = TensorView::of(state.data(), {2, 4, 16, 16});
  try {
    cuda::ssd_step(on_host, nullptr);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "ssd_step: x is in host memory, expected it in memory of a CUDA device");
  }
}

}  // namespace
}  // namespace adder
