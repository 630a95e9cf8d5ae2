#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "cuda/timing.h"
#include "ops/linear/linear.h"
#include "ops/linear/ref.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using LinearCuda = test::OnDevice;
using test::DeviceBuffer;
using test::error_of;
using test::Pooled;

constexpr std::int64_t kFew = cuda::kFewTokens;

struct DTypes {
  DType x, weight, y;

  std::string name() const {
    return fmt::format("x {}, weight {}, y {}", name_of(x), name_of(weight), name_of(y));
  }
};
constexpr DTypes kAllDTypes[] = {
    {DType::f32, DType::f32, DType::f32},   {DType::f32, DType::bf16, DType::f32},
    {DType::f32, DType::f16, DType::f32},   {DType::bf16, DType::bf16, DType::bf16},
    {DType::bf16, DType::bf16, DType::f32}, {DType::f16, DType::f16, DType::f16},
    {DType::f16, DType::f16, DType::f32}};

struct Shape {
  std::int64_t ntokens, in, out;
};

// Random data of one shape, rounded to the dtypes of the call.
struct Problem {
  Problem(const Shape& s, const DTypes& d, bool with_bias, bool with_sum = false)
      : shape(s), dtypes(d) {
    test::Random random(static_cast<std::uint64_t>(s.ntokens * 1000003 + s.in * 1009 + s.out));
    x = test::rounded(random.normals(s.ntokens * s.in), d.x);
    weight = test::rounded(random.normals(s.out * s.in), d.weight);
    // Where a bias is rounded first, let the rounding change nothing.
    if (with_bias) bias = test::rounded(random.normals(s.out), d.y);
    if (with_sum) sum = random.normals(s.ntokens * s.out, 3.0);
  }

  template <typename Real>
  std::vector<Real> reference() const {
    const std::vector<Real> x_real(x.begin(), x.end());
    const std::vector<Real> weight_real(weight.begin(), weight.end());
    const std::vector<Real> bias_real(bias.begin(), bias.end());
    const auto in = static_cast<std::size_t>(shape.in);
    const auto out = static_cast<std::size_t>(shape.out);
    std::vector<Real> y(static_cast<std::size_t>(shape.ntokens) * out);
    for (std::size_t t = 0; t < static_cast<std::size_t>(shape.ntokens); ++t) {
      ref::linear_row<Real>(std::span(x_real).subspan(t * in, in), weight_real, bias_real,
                            std::span(y).subspan(t * out, out));
    }
    for (std::size_t i = 0; i < sum.size(); ++i) y[i] += static_cast<Real>(sum[i]);
    return y;
  }

  Shape shape;
  DTypes dtypes;
  std::vector<float> x, weight, bias;
  std::vector<float> sum;  ///< what y holds before and is added to; empty: y is only written
};

// A call on the device. x and y are columns of wider matrices, `gap` elements wider.
class DeviceCall {
 public:
  explicit DeviceCall(const Problem& p, std::int64_t misalignment = 0, std::int64_t gap = 0)
      : x_(p.dtypes.x, widened(p.x, p.shape.in, gap), misalignment),
        weight_(p.dtypes.weight, p.weight, misalignment),
        bias_(DType::f32, p.bias),
        y_(p.dtypes.y, p.shape.ntokens * (p.shape.out + gap), misalignment),
        gap_(gap),
        weight(weight_.view({p.shape.out, p.shape.in})) {
    args.x = x_.view({p.shape.ntokens, p.shape.in + gap}).narrow(1, 0, p.shape.in);
    args.y = y_.view({p.shape.ntokens, p.shape.out + gap}).narrow(1, 0, p.shape.out);
    if (!p.bias.empty()) args.bias = bias_.view({p.shape.out});
    args.accumulate = !p.sum.empty();
    if (args.accumulate) before_ = widened(p.sum, p.shape.out, gap);
    workspace_bytes_ = cuda::linear_workspace_bytes(args, weight);
    workspace_ = cuda::allocate(workspace_bytes_);
  }

  std::vector<float> run(cuda::Stream stream = nullptr) {
    reset();
    enqueue(stream);
    return result(stream);
  }
  void enqueue(cuda::Stream stream) {
    cuda::linear(args, weight, {workspace_.get(), workspace_bytes_}, stream);
  }
  std::vector<float> result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    const std::vector<float> all = y_.values(stream);
    const auto out = static_cast<std::size_t>(args.y.dim(1));
    const std::size_t row = out + static_cast<std::size_t>(gap_);
    std::vector<float> y;
    for (std::size_t first = 0; first < all.size(); first += row) {
      y.insert(y.end(), all.begin() + static_cast<std::ptrdiff_t>(first),
               all.begin() + static_cast<std::ptrdiff_t>(first + out));
      for (std::size_t i = first + out; i < first + row; ++i) {
        EXPECT_TRUE(std::isnan(all[i])) << "written beside y";
      }
    }
    return y;
  }
  /// y as it is before a call: poison, or what is added to.
  void reset() {
    y_.poison();
    if (args.accumulate) y_.fill(before_);
  }

 private:
  // Rows with NaN between them, which must not matter.
  static std::vector<float> widened(const std::vector<float>& rows, std::int64_t length,
                                    std::int64_t gap) {
    std::vector<float> out;
    for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(length)) {
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(first);
      out.insert(out.end(), begin, begin + length);
      out.insert(out.end(), static_cast<std::size_t>(gap), std::numeric_limits<float>::quiet_NaN());
    }
    return out;
  }

  DeviceBuffer x_, weight_, bias_, y_;
  std::vector<float> before_;
  std::int64_t gap_;
  std::size_t workspace_bytes_ = 0;
  std::shared_ptr<std::byte> workspace_;

 public:
  LinearArgs args;
  ConstTensorView weight;
};

TEST_F(LinearCuda, AsGoodAsPlainLoopsForEveryDtypeAndNumberOfTokens) {
  for (const DTypes& dtypes : kAllDTypes) {
    for (bool with_bias : {false, true}) {
      Pooled pooled;
      for (std::int64_t ntokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 130}) {
        for (const auto& [in, out] : {std::pair{64, 96}, std::pair{768, 40}, std::pair{256, 264}}) {
          const Problem p({ntokens, in, out}, dtypes, with_bias);
          pooled.add(DeviceCall(p).run(), p.reference<double>(),
                     test::rounded(p.reference<float>(), dtypes.y),
                     fmt::format("{}: {} x {} x {}", dtypes.name(), ntokens, in, out));
        }
      }
      EXPECT_TRUE(pooled.as_good_as_plain()) << dtypes.name() << ", bias " << with_bias;
    }
  }
}

// Tails, column slices, and addresses that vectors do not fit.
TEST_F(LinearCuda, RaggedShapesAndStrides) {
  for (const DTypes& dtypes : kAllDTypes) {
    Pooled pooled;
    for (std::int64_t ntokens : {1, 3, 8, 9, 20}) {
      for (const auto& [in, out] : {std::pair{1, 1}, std::pair{7, 3}, std::pair{33, 50},
                                    std::pair{160, 31}, std::pair{1030, 65}}) {
        for (std::int64_t misalignment : {0, 1}) {
          for (std::int64_t gap : {0, 8, 13}) {
            const Problem p({ntokens, in, out}, dtypes, false);
            pooled.add(DeviceCall(p, misalignment, gap).run(), p.reference<double>(),
                       test::rounded(p.reference<float>(), dtypes.y),
                       fmt::format("{}: {} x {} x {}, misalignment {}, gap {}", dtypes.name(),
                                   ntokens, in, out, misalignment, gap));
          }
        }
      }
    }
    EXPECT_TRUE(pooled.as_good_as_plain()) << dtypes.name();
  }
}

TEST_F(LinearCuda, NoTokensAtAll) {
  const Problem p({0, 64, 32}, kAllDTypes[0], true);
  EXPECT_TRUE(DeviceCall(p).run().empty());
}

// As to the residual stream; whatever the bits of x, what it is added to has those of f32.
TEST_F(LinearCuda, AddsToWhatYHolds) {
  for (const DTypes& dtypes : kAllDTypes) {
    if (dtypes.y != DType::f32) continue;
    for (bool with_bias : {false, true}) {
      Pooled pooled;
      for (std::int64_t ntokens : {1, 2, 5, 8, 9, 20, 130, 300}) {
        for (const auto& [in, out] : {std::pair{64, 96}, {768, 40}, {33, 50}, {256, 264}}) {
          for (std::int64_t gap : {0, 8, 13}) {
            const Problem p({ntokens, in, out}, dtypes, with_bias, true);
            pooled.add(
                DeviceCall(p, gap % 8 == 0 ? 0 : 1, gap).run(), p.reference<double>(),
                p.reference<float>(),
                fmt::format("{}: {} x {} x {}, gap {}", dtypes.name(), ntokens, in, out, gap));
          }
        }
      }
      // A tensor core cuts digits of a sum off, where loops round them: a little more than
      // twice their error, at worst.
      EXPECT_TRUE(pooled.as_good_as_plain(2e-6)) << dtypes.name() << ", bias " << with_bias;
    }
  }
}

// No digit of what is added to is lost on the way, in parts of x neither.
TEST_F(LinearCuda, AddsNothingWhereThereIsNothingToAdd) {
  for (const DTypes& dtypes : kAllDTypes) {
    if (dtypes.y != DType::f32) continue;
    for (std::int64_t ntokens : {kFew, kFew + 1, std::int64_t{300}}) {
      Problem p({ntokens, 64, 64}, dtypes, false, true);
      std::fill(p.x.begin(), p.x.end(), 0.0F);
      EXPECT_TRUE(test::same_bits(DeviceCall(p).run(), p.sum)) << dtypes.name() << ", " << ntokens;
    }
  }
}

// The sum of three parts of x is x: what is far apart in size survives.
TEST_F(LinearCuda, NoDigitOfAFloatIsDropped) {
  for (DType weight_dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (std::int64_t ntokens : {kFew, kFew + 1}) {
      Problem p({ntokens, 64, 64}, {DType::f32, weight_dtype, DType::f32}, false);
      // A permutation: every element of y is one element of x.
      for (std::size_t i = 0; i < p.weight.size(); ++i) {
        p.weight[i] = i % 64 == (i / 64 * 5 + 3) % 64 ? 1.0F : 0.0F;
      }
      for (std::size_t i = 0; i < p.x.size(); ++i) {
        p.x[i] = std::ldexp(p.x[i], static_cast<int>(i % 61) - 30);
      }
      EXPECT_TRUE(test::same_bits(DeviceCall(p).run(), p.reference<float>()))
          << name_of(weight_dtype) << ", " << ntokens << " tokens";
    }
  }
}

TEST_F(LinearCuda, ATokenDependsOnItsRowAloneAmongFew) {
  for (const DTypes& dtypes : kAllDTypes) {
    const Problem all({kFew, 200, 70}, dtypes, true);
    const std::vector<float> together = DeviceCall(all).run();
    for (std::int64_t count = 1; count <= kFew; ++count) {
      Problem p = all;
      p.shape.ntokens = count;
      p.x.resize(static_cast<std::size_t>(count * p.shape.in));
      const std::vector<float> got = DeviceCall(p).run();
      EXPECT_TRUE(test::same_bits(
          got, std::vector(together.begin(), together.begin() + count * p.shape.out)))
          << dtypes.name() << ", " << count;
    }
  }
}

TEST_F(LinearCuda, RunsAndReplaysAgreeBitForBit) {
  for (const DTypes& dtypes : kAllDTypes) {
    for (std::int64_t ntokens : {5, 300}) {
      const Problem p({ntokens, 640, 520}, dtypes, true, dtypes.y == DType::f32);
      DeviceCall call(p);
      const std::vector<float> first = call.run();
      cuda::OwnedStream stream;
      const cuda::Graph graph(stream, [&] { call.enqueue(stream); });
      for (int i = 0; i < 3; ++i) {
        call.reset();
        graph.launch(stream);
        EXPECT_TRUE(test::same_bits(call.result(stream), first)) << dtypes.name();
      }
    }
  }
}

TEST_F(LinearCuda, NaNShowsInItsRowAlone) {
  for (const DTypes& dtypes : kAllDTypes) {
    for (std::int64_t ntokens : {4, 24}) {
      Problem p({ntokens, 96, 48}, dtypes, false);
      p.x[static_cast<std::size_t>(2 * p.shape.in + 5)] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> got = DeviceCall(p).run();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::isnan(got[i]), i / 48 == 2) << dtypes.name() << ", element " << i;
      }
    }
  }
}

// x, the weight or y of more than 2^31 elements.
TEST_F(LinearCuda, OffsetsBeyond32Bits) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 31) + 4096;
  struct Case {
    std::int64_t ntokens, x_stride, in, out, weight_stride;
  };
  for (const Case& c : {Case{2, kLarge, 64, 32, 64}, Case{2, 64, 64, 2, kLarge},
                        Case{12, kLarge / 11, 64, 32, 64}}) {
    const auto x_size = static_cast<std::size_t>((c.ntokens - 1) * c.x_stride + c.in);
    const auto weight_size = static_cast<std::size_t>((c.out - 1) * c.weight_stride + c.in);
    std::shared_ptr<std::byte> x;
    std::shared_ptr<std::byte> weight;
    try {
      x = cuda::allocate(2 * x_size);
      weight = cuda::allocate(2 * weight_size);
    } catch (const Error&) {
      GTEST_SKIP() << "the device has too little memory";
    }
    const Problem p({c.ntokens, c.in, c.out}, {DType::bf16, DType::bf16, DType::f32}, false);
    const auto copy_rows = [](std::byte* to, const std::vector<float>& rows, std::int64_t length,
                              std::int64_t stride) {
      const std::vector<std::byte> bytes = test::encode(rows, DType::bf16);
      const std::size_t row = 2 * static_cast<std::size_t>(length);
      for (std::size_t r = 0; r * row < bytes.size(); ++r) {
        cuda::copy_to_device(to + 2 * static_cast<std::size_t>(stride) * r, bytes.data() + row * r,
                             row, nullptr);
      }
    };
    copy_rows(x.get(), p.x, c.in, c.x_stride);
    copy_rows(weight.get(), p.weight, c.in, c.weight_stride);
    DeviceCall call(p);
    call.args.x.data = x.get();
    call.args.x.strides[0] = c.x_stride;
    call.weight.data = weight.get();
    call.weight.strides[0] = c.weight_stride;
    EXPECT_TRUE(test::as_good_as_plain(call.run(), p.reference<double>(), p.reference<float>()));
  }
}

TEST(LinearCudaErrors, NameTheArgumentThatIsWrong) {
  // Never dereferenced: the checks come first.
  const Device where{DeviceType::cuda, 0};
  float memory = 0;
  const auto view = [&](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(&memory, dtype, dims, where);
  };
  LinearArgs args{.x = view(DType::bf16, {3, 8}), .bias = {}, .y = view(DType::bf16, {3, 4})};
  args.y.data = &args;
  const auto error = [&](const ConstTensorView& weight) {
    return error_of([&] { cuda::linear(args, weight, {}, nullptr); });
  };
  EXPECT_EQ(error(view(DType::bf16, {4, 9})), "linear: x has shape (3, 8), expected (any, 9)");
  EXPECT_EQ(error(view(DType::f16, {4, 8})), "linear: weight has dtype f16, expected bf16");
  EXPECT_EQ(error(view(DType::bf16, {4, 0})),
            "linear: weight has shape (4, 0), expected at least one column");
  EXPECT_EQ(error({}), "linear: weight is missing, expected a tensor of shape (any, any)");
  ConstTensorView host = view(DType::bf16, {4, 8});
  host.device = {};
  EXPECT_EQ(error(host),
            "linear: weight is in host memory, expected it in memory of CUDA device 0");
  args.y.dtype = DType::f16;
  EXPECT_EQ(error(view(DType::bf16, {4, 8})), "linear: y has dtype f16, expected f32 or bf16");
  args.y.dtype = DType::bf16;
  args.accumulate = true;
  EXPECT_EQ(error(view(DType::bf16, {4, 8})),
            "linear: y has dtype bf16 and accumulate is set, expected f32");
}

TEST_F(LinearCuda, AWorkspaceThatIsTooSmallIsNamed) {
  const Problem p({20, 64, 64}, kAllDTypes[1], false);
  const DeviceCall call(p);
  const std::size_t needed = cuda::linear_workspace_bytes(call.args, call.weight);
  EXPECT_EQ(error_of([&] { cuda::linear(call.args, call.weight, {}, nullptr); }),
            fmt::format("linear: workspace has 0 bytes, expected at least {}", needed));
}

}  // namespace
}  // namespace adder
