#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/test_problem.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/pooled.h"

namespace adder {
namespace {

using RmsNormCuda = test::OnDevice;
using test::DeviceBuffer;
using test::Pooled;
using test::RmsNormProblem;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

struct Result {
  std::vector<float> residual, y;
};

// One call of a problem on the device, with y and the residual between canaries.
class DeviceCall {
 public:
  DeviceCall(const RmsNormProblem& p, DType residual_dtype, DType dtype,
             std::int64_t misalignment = 0)
      : residual_(residual_dtype, p.residual, misalignment),
        x_(dtype, p.x, misalignment),
        weight_(DType::f32, p.weight, misalignment),
        y_(dtype, static_cast<std::int64_t>(p.residual.size()), misalignment) {
    args.residual = residual_.view({p.ntokens, p.d_model});
    args.y = y_.view({p.ntokens, p.d_model});
    if (p.with_x) args.x = x_.view({p.ntokens, p.d_model});
    if (p.with_weight) args.weight = weight_.view({p.d_model});
  }

  Result run() {
    cuda::rms_norm(args, nullptr);
    return result();
  }
  Result result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(residual_.intact(stream));
    EXPECT_TRUE(y_.intact(stream));
    return {residual_.values(stream), y_.values(stream)};
  }
  std::vector<float> x() const { return x_.values(); }
  void set_residual(std::span<const float> values) { residual_.fill(values); }

  RmsNormArgs args;

 private:
  DeviceBuffer residual_, x_, weight_, y_;
};

RmsNormProblem random_problem(std::int64_t ntokens, std::int64_t d_model, bool with_x,
                              bool with_weight, DType residual_dtype, DType dtype) {
  RmsNormProblem p{ntokens, d_model, with_x, with_weight};
  p.fill();
  p.residual = test::rounded(p.residual, residual_dtype);
  p.x = test::rounded(p.x, dtype);
  return p;
}

void compare(const RmsNormProblem& p, DType residual_dtype, DType dtype, std::int64_t misalignment,
             Pooled& pooled, const std::string& label) {
  SCOPED_TRACE(label);
  const Result got = DeviceCall(p, residual_dtype, dtype, misalignment).run();
  const auto plain = p.reference<float>();
  pooled.add(got.y, p.reference<double>().y, test::rounded(plain.y, dtype), label);
  EXPECT_TRUE(test::same_bits(got.residual, plain.residual));
}

TEST_F(RmsNormCuda, AsGoodAsPlainLoopsInEveryDtypeAndOption) {
  for (DType dtype : kDTypes) {
    for (std::int64_t misalignment : {0, 1}) {
      for (int options = 0; options < 4; ++options) {
        Pooled pooled;
        for (std::int64_t ntokens : {0, 1, 3, 40}) {
          for (std::int64_t d_model : {1, 2, 15, 16, 17, 64, 100, 384, 1000, 2560}) {
            const RmsNormProblem p = random_problem(ntokens, d_model, (options & 1) != 0,
                                                    (options & 2) != 0, DType::f32, dtype);
            compare(p, DType::f32, dtype, misalignment, pooled,
                    fmt::format("{} misalignment {} ntokens {} d_model {} options {}",
                                name_of(dtype), misalignment, ntokens, d_model, options));
          }
        }
        EXPECT_TRUE(pooled.as_good_as_plain());
      }
    }
  }
}

// A residual of 16 bits, without x.
TEST_F(RmsNormCuda, NormsOfActivations) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (std::int64_t misalignment : {0, 1}) {
      Pooled pooled;
      for (std::int64_t d_model : {1, 8, 17, 64, 1000, 2560}) {
        compare(random_problem(7, d_model, false, true, dtype, dtype), dtype, dtype, misalignment,
                pooled, fmt::format("{} d_model {}", name_of(dtype), d_model));
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

// Around every number of threads and vectors that rows are spread over, and wider rows than fit
// registers.
TEST_F(RmsNormCuda, RowsOfEveryLength) {
  for (DType dtype : kDTypes) {
    for (std::int64_t nvectors : {32, 64, 96, 128, 129, 192, 320, 511, 640, 1024, 2048, 2049}) {
      Pooled pooled;
      for (std::int64_t extra : {-1, 0, 1, 8}) {
        const std::int64_t d_model = nvectors * 4 + extra;
        compare(random_problem(3, d_model, true, true, DType::f32, dtype), DType::f32, dtype, 0,
                pooled, fmt::format("{} d_model {}", name_of(dtype), d_model));
      }
      EXPECT_TRUE(pooled.as_good_as_plain());
    }
  }
}

TEST_F(RmsNormCuda, YMayBeX) {
  for (std::int64_t misalignment : {0, 1}) {
    const RmsNormProblem p = random_problem(5, 2560, true, true, DType::f32, DType::bf16);
    const Result apart = DeviceCall(p, DType::f32, DType::bf16, misalignment).run();
    DeviceCall over_x(p, DType::f32, DType::bf16, misalignment);
    over_x.args.y.data = const_cast<void*>(over_x.args.x.data);
    EXPECT_TRUE(test::same_bits(over_x.run().residual, apart.residual));
    EXPECT_TRUE(test::same_bits(over_x.x(), apart.y));
  }
}

// As Falcon-Mamba normalizes dt, B and C: columns of x_proj's output, without a weight.
TEST_F(RmsNormCuda, AStridedSliceInPlaceLeavesTheOtherColumnsAlone) {
  constexpr std::int64_t kColumns = 40;
  for (DType dtype : kDTypes) {
    for (std::int64_t begin : {16, 11}) {  // 11: no row is aligned to 16 bytes
      test::Random random;
      const auto original = test::rounded(random.normals(7 * 96), dtype);
      const DeviceBuffer memory(dtype, original);
      const TensorView slice = memory.view({7, 96}).narrow(1, begin, kColumns);
      cuda::rms_norm({.residual = slice, .x = {}, .weight = {}, .y = slice}, nullptr);
      const auto after = memory.values();
      RmsNormProblem p{7, kColumns, false, false};
      std::vector<float> got;
      for (std::size_t i = 0; i < after.size(); ++i) {
        const auto column = static_cast<std::int64_t>(i % 96) - begin;
        if (column >= 0 && column < kColumns) {
          p.residual.push_back(original[i]);
          got.push_back(after[i]);
        } else {
          EXPECT_EQ(after[i], original[i]) << "element " << i;
        }
      }
      EXPECT_TRUE(test::as_good_as_plain(got, p.reference<double>().y,
                                         test::rounded(p.reference<float>().y, dtype)));
    }
  }
}

TEST_F(RmsNormCuda, ARowDoesNotDependOnOtherRows) {
  for (std::int64_t d_model : {384, 2560}) {
    const RmsNormProblem p = random_problem(33, d_model, true, true, DType::f32, DType::bf16);
    const Result all = DeviceCall(p, DType::f32, DType::bf16).run();
    DeviceCall call(p, DType::f32, DType::bf16);
    const RmsNormArgs whole = call.args;
    for (std::int64_t t = 0; t < 33; ++t) {
      RmsNormArgs row = whole;
      row.residual = whole.residual.narrow(0, t, 1);
      row.x = whole.x.narrow(0, t, 1);
      row.y = whole.y.narrow(0, t, 1);
      cuda::rms_norm(row, nullptr);
    }
    EXPECT_TRUE(test::same_bits(call.result().y, all.y));
    EXPECT_TRUE(test::same_bits(call.result().residual, all.residual));
  }
}

TEST_F(RmsNormCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (std::int64_t d_model : {384, 2560, 20000}) {
    const RmsNormProblem p = random_problem(50, d_model, true, true, DType::f32, DType::bf16);
    const Result expected = DeviceCall(p, DType::f32, DType::bf16).run();
    DeviceCall call(p, DType::f32, DType::bf16);
    const cuda::OwnedStream stream;
    const cuda::Graph graph(stream, [&] { cuda::rms_norm(call.args, stream); });
    for (int replay = 0; replay < 2; ++replay) {
      call.set_residual(p.residual);
      graph.launch(stream);
      const Result got = call.result(stream);
      EXPECT_TRUE(test::same_bits(got.y, expected.y));
      EXPECT_TRUE(test::same_bits(got.residual, expected.residual));
    }
  }
}

TEST_F(RmsNormCuda, AZeroRowStaysFinite) {
  RmsNormProblem p{1, 8, false, false};
  p.residual.assign(8, 0.0F);
  EXPECT_TRUE(test::same_bits(DeviceCall(p, DType::f32, DType::f32).run().y, p.residual));
}

// ---- what needs no device -----------------------------------------------------------------------

// Arguments whose memory is never touched, since one of them is wrong.
RmsNormArgs device_args() {
  static std::byte memory[128];
  const auto view = [](std::size_t at, DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory + at, dtype, dims, {DeviceType::cuda, 0});
  };
  return {.residual = view(0, DType::f32, {4, 8}),
          .x = view(16, DType::bf16, {4, 8}),
          .weight = view(32, DType::f32, {8}),
          .y = view(64, DType::bf16, {4, 8})};
}

template <typename Change>
std::string error_of(Change&& change) {
  RmsNormArgs args = device_args();
  change(args);
  return test::error_of([&] { cuda::rms_norm(args, nullptr); });
}

TEST(RmsNormCudaErrors, NameTheArgumentThatIsWrong) {
  using Args = RmsNormArgs;
  EXPECT_EQ(error_of([](Args& args) { args.x.dtype = DType::f16; }),
            "rms_norm: x has dtype f16, expected bf16");
  EXPECT_EQ(error_of([](Args& args) { args.residual.dtype = DType::bf16; }),
            "rms_norm: residual has dtype bf16, expected f32");
  EXPECT_EQ(error_of([](Args& args) {
              args.x = {};
              args.residual.dtype = DType::f16;
            }),
            "rms_norm: y has dtype bf16, expected f16");
  EXPECT_EQ(error_of([](Args& args) {
              args.x = {};
              args.y.data = args.residual.data;
            }),
            "rms_norm: y is residual but of dtype bf16, expected f32");
  EXPECT_EQ(error_of([](Args& args) { args.y.device.index = 1; }),
            "rms_norm: y is in memory of CUDA device 1, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](Args& args) { args.weight.shape[0] = 7; }),
            "rms_norm: weight has shape (7), expected (8)");
}

TEST(RmsNormCudaErrors, EachDeviceHasItsEntry) {
  std::vector<float> data(16);
  EXPECT_EQ(error_of([&](RmsNormArgs& args) {
              args = {.residual = TensorView::of(data.data(), {1, 8}),
                      .x = {},
                      .weight = {},
                      .y = TensorView::of(data.data() + 8, {1, 8})};
            }),
            "rms_norm: residual is in host memory, expected it in memory of a CUDA device");
  ThreadPool pool(1);
  try {
    cpu::rms_norm(device_args(), pool);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "rms_norm: residual is in memory of CUDA device 0, expected it in host memory");
  }
}

}  // namespace
}  // namespace adder
