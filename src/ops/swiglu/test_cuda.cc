#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/swiglu/ref.h"
#include "ops/swiglu/swiglu.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using SwigluCuda = test::OnDevice;
using test::DeviceBuffer;
using test::Pooled;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// How many elements lie between an aligned address and each tensor.
struct Misalignment {
  std::int64_t x = 0;
  std::int64_t gate = 0;
  std::int64_t y = 0;
};

struct Problem {
  DType dtype;
  std::int64_t ntokens;
  std::int64_t d_mlp;
  std::vector<float> x{}, gate{};

  Problem(DType dtype_, std::int64_t ntokens_, std::int64_t d_mlp_)
      : dtype(dtype_), ntokens(ntokens_), d_mlp(d_mlp_) {
    test::Random random;
    x = test::rounded(random.normals(ntokens * d_mlp), dtype);
    gate = test::rounded(random.normals(ntokens * d_mlp, 4.0), dtype);
  }

  std::vector<double> truth() const {
    std::vector<double> y(x.size());
    ref::swiglu<double>(test::to_double(x), test::to_double(gate), y);
    return y;
  }
  std::vector<float> plain() const {
    std::vector<float> y(x.size());
    ref::swiglu<float>(x, gate, y);
    return test::rounded(y, dtype);
  }
};

// One call of a problem on the device, with y between canaries.
class DeviceCall {
 public:
  explicit DeviceCall(const Problem& p, const Misalignment& at = {})
      : x_(p.dtype, p.x, at.x),
        gate_(p.dtype, p.gate, at.gate),
        y_(p.dtype, p.ntokens * p.d_mlp, at.y) {
    args.x = x_.view({p.ntokens, p.d_mlp});
    args.gate = gate_.view({p.ntokens, p.d_mlp});
    args.y = y_.view({p.ntokens, p.d_mlp});
  }

  std::vector<float> run() {
    cuda::swiglu(args, nullptr);
    return result();
  }
  std::vector<float> result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    return y_.values(stream);
  }
  std::vector<float> x() const { return x_.values(); }
  std::vector<float> gate() const { return gate_.values(); }
  void poison() { y_.poison(); }

  SwigluArgs args;

 private:
  DeviceBuffer x_, gate_, y_;
};

TEST_F(SwigluCuda, AsGoodAsPlainLoopsInEveryDtypeAndSize) {
  for (DType dtype : kDTypes) {
    Pooled pooled;
    for (std::int64_t ntokens : {0, 1, 3, 40}) {
      for (std::int64_t d_mlp : {0, 1, 5, 8, 15, 16, 17, 100, 512, 1030, 5120}) {
        const Problem p(dtype, ntokens, d_mlp);
        const auto label = fmt::format("{} ntokens {} d_mlp {}", name_of(dtype), ntokens, d_mlp);
        SCOPED_TRACE(label);
        const auto got = DeviceCall(p).run();
        pooled.add(got, p.truth(), p.plain(), label);
        const Misalignment places[] = {{1, 1, 1}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
        for (const Misalignment& at : places) {
          EXPECT_TRUE(test::same_bits(DeviceCall(p, at).run(), got))
              << "misaligned by " << at.x << " " << at.gate << " " << at.y;
        }
      }
    }
    EXPECT_TRUE(pooled.as_good_as_plain());
  }
}

// Around every number of threads and vectors that rows are spread over, and longer rows than a
// thread block takes without a loop.
TEST_F(SwigluCuda, RowsOfEveryLength) {
  for (DType dtype : kDTypes) {
    const std::int64_t vector = 16 / static_cast<std::int64_t>(size_of(dtype));
    Pooled pooled;
    for (std::int64_t nvectors : {32, 64, 128, 129, 192, 320, 511, 640, 1024, 2048, 2049}) {
      for (std::int64_t extra : {std::int64_t{-1}, std::int64_t{0}, vector}) {
        const Problem p(dtype, 3, nvectors * vector + extra);
        const auto label = fmt::format("{} d_mlp {}", name_of(dtype), p.d_mlp);
        SCOPED_TRACE(label);
        pooled.add(DeviceCall(p).run(), p.truth(), p.plain(), label);
      }
    }
    EXPECT_TRUE(pooled.as_good_as_plain());
  }
}

TEST_F(SwigluCuda, TheHalvesOfAMatrixProductInPlaceAndInEitherOrder) {
  constexpr std::int64_t kTokens = 9;
  for (DType dtype : kDTypes) {
    for (std::int64_t width : {72, 70, 2560}) {  // 70: the second half is not aligned to 16 bytes
      test::Random random;
      const auto fc1 = test::rounded(random.normals(kTokens * 2 * width), dtype);
      for (std::int64_t gate_at : {width, std::int64_t{0}}) {
        SCOPED_TRACE(fmt::format("{} width {} gate at {}", name_of(dtype), width, gate_at));
        const DeviceBuffer memory(dtype, fc1);
        const DeviceBuffer apart(dtype, kTokens * width);
        const TensorView rows = memory.view({kTokens, 2 * width});
        SwigluArgs args{.x = rows.narrow(1, width - gate_at, width),
                        .gate = rows.narrow(1, gate_at, width),
                        .y = apart.view({kTokens, width})};
        cuda::swiglu(args, nullptr);
        const auto expected = apart.values();
        args.y = rows.narrow(1, 0, width);
        cuda::swiglu(args, nullptr);
        EXPECT_TRUE(memory.intact());
        const auto got = memory.values();
        const auto w = static_cast<std::size_t>(width);
        for (std::size_t t = 0; t < kTokens; ++t) {
          const std::span row = std::span(got).subspan(2 * t * w, 2 * w);
          EXPECT_TRUE(test::same_bits(row.first(w), std::span(expected).subspan(t * w, w)));
          EXPECT_TRUE(test::same_bits(row.last(w), std::span(fc1).subspan((2 * t + 1) * w, w)));
        }
      }
    }
  }
}

TEST_F(SwigluCuda, YMayBeXOrGate) {
  for (DType dtype : kDTypes) {
    for (std::int64_t d_mlp : {100, 5120, 20000}) {
      for (std::int64_t misalignment : {0, 1}) {
        const Problem p(dtype, 5, d_mlp);
        const auto expected = DeviceCall(p).run();
        const Misalignment at{misalignment, misalignment, misalignment};
        DeviceCall over_x(p, at);
        over_x.args.y.data = const_cast<void*>(over_x.args.x.data);
        over_x.run();
        EXPECT_TRUE(test::same_bits(over_x.x(), expected));
        DeviceCall over_gate(p, at);
        over_gate.args.y.data = const_cast<void*>(over_gate.args.gate.data);
        over_gate.run();
        EXPECT_TRUE(test::same_bits(over_gate.gate(), expected));
      }
    }
  }
}

TEST_F(SwigluCuda, ExtremeGatesGiveNoNaN) {  // known bug 8
  const std::vector<float> values{-1e30F, -1e4F, -100, -88, 0, 88, 100, 1e4F, 1e30F};
  for (DType dtype : kDTypes) {
    // In f16 the largest have no number.
    const auto gate = dtype == DType::f16 ? std::vector<float>(values.begin() + 1, values.end() - 1)
                                          : test::rounded(values, dtype);
    const DeviceBuffer x(dtype, std::vector<float>(gate.size(), 2.0F));
    const DeviceBuffer gate_there(dtype, gate);
    const auto n = static_cast<std::int64_t>(gate.size());
    const DeviceBuffer y(dtype, n);
    cuda::swiglu({.x = x.view({1, n}), .gate = gate_there.view({1, n}), .y = y.view({1, n})},
                 nullptr);
    const auto got = y.values();
    const double tolerance = dtype == DType::f32 ? 1e-6 : 4e-3;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double z = gate[i];
      const double expected = 2 * z / (1 + std::exp(-z));
      EXPECT_NEAR(got[i], expected, tolerance * std::abs(expected) + 1e-30)
          << name_of(dtype) << " " << z;
    }
  }
}

TEST_F(SwigluCuda, ARowDoesNotDependOnOtherRows) {
  for (std::int64_t d_mlp : {384, 5120}) {
    const Problem p(DType::bf16, 33, d_mlp);
    const auto all = DeviceCall(p).run();
    DeviceCall call(p);
    for (std::int64_t t = 0; t < 33; ++t) {
      cuda::swiglu({.x = call.args.x.narrow(0, t, 1),
                    .gate = call.args.gate.narrow(0, t, 1),
                    .y = call.args.y.narrow(0, t, 1)},
                   nullptr);
    }
    EXPECT_TRUE(test::same_bits(call.result(), all));
  }
}

TEST_F(SwigluCuda, OffsetsBeyond32Bits) {  // known bug 12
  const std::int64_t size = test::kBeyond32Bits + 64;
  if (cuda::properties(cuda::current_device()).memory_bytes < 3 * size) {
    GTEST_SKIP() << "no device memory for " << 2 * size << " bytes";
  }
  const Tensor memory = cuda::empty(DType::bf16, std::array{size});
  TensorView rows = memory.view;
  rows.rank = 2;
  rows.shape = {2, 64};
  rows.strides = {test::kBeyond32Bits, 1};
  for (std::int64_t begin : {0, 1}) {  // in vectors, and element by element
    for (std::int64_t t : {0, 1}) {
      std::vector<float> values(64);
      values[static_cast<std::size_t>(begin + 1)] = static_cast<float>(3 + t);         // x
      values[static_cast<std::size_t>(begin + 16 + 1)] = static_cast<float>(100 + t);  // gate
      const auto bytes = test::encode(values, DType::bf16);
      cuda::copy_to_device(rows[t].data, bytes.data(), bytes.size(), nullptr);
    }
    cuda::swiglu({.x = rows.narrow(1, begin, 16),
                  .gate = rows.narrow(1, begin + 16, 16),
                  .y = rows.narrow(1, begin + 32, 16)},
                 nullptr);
    for (std::int64_t t : {0, 1}) {
      const Tensor got = cuda::to_host(rows[t].narrow(0, begin + 33, 1));
      EXPECT_EQ(to_float(*got.as<bf16>()), t == 0 ? 300.0F : 404.0F);
    }
  }
}

TEST_F(SwigluCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (std::int64_t d_mlp : {384, 5120, 20000}) {
    const Problem p(DType::bf16, 20, d_mlp);
    DeviceCall call(p);
    const auto expected = call.run();
    EXPECT_TRUE(test::same_bits(call.run(), expected));
    const cuda::OwnedStream stream;
    const cuda::Graph graph(stream, [&] { cuda::swiglu(call.args, stream); });
    for (int replay = 0; replay < 2; ++replay) {
      call.poison();
      graph.launch(stream);
      EXPECT_TRUE(test::same_bits(call.result(stream), expected));
    }
  }
}

// ---- what needs no device -----------------------------------------------------------------------

// Arguments whose memory is never touched, since one of them is wrong.
SwigluArgs device_args() {
  static std::byte memory[256];
  const auto view = [](std::size_t at) {
    return TensorView(memory + at, DType::bf16, {4, 8}, {DeviceType::cuda, 0});
  };
  return {.x = view(0), .gate = view(64), .y = view(128)};
}

template <typename Change>
std::string error_of(Change&& change) {
  SwigluArgs args = device_args();
  change(args);
  return test::error_of([&] { cuda::swiglu(args, nullptr); });
}

TEST(SwigluCudaErrors, NameTheArgumentThatIsWrong) {
  using Args = SwigluArgs;
  EXPECT_EQ(error_of([](Args& args) { args.x.dtype = DType::i32; }),
            "swiglu: x has dtype i32, expected f32 or bf16 or f16");
  EXPECT_EQ(error_of([](Args& args) { args.gate.dtype = DType::f16; }),
            "swiglu: gate has dtype f16, expected bf16");
  EXPECT_EQ(error_of([](Args& args) { args.y.dtype = DType::f32; }),
            "swiglu: y has dtype f32, expected bf16");
  EXPECT_EQ(error_of([](Args& args) { args.y.device.index = 1; }),
            "swiglu: y is in memory of CUDA device 1, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](Args& args) { args.gate.shape[1] = 7; }),
            "swiglu: gate has shape (4, 7), expected (4, 8)");
  EXPECT_EQ(error_of([](Args& args) {
              args.x.strides = {1, 4};
            }),
            "swiglu: x has stride 4 in its last dimension, expected 1");
}

TEST(SwigluCudaErrors, EachDeviceHasItsEntry) {
  std::vector<float> data(24);
  EXPECT_EQ(error_of([&](SwigluArgs& args) {
              args = {.x = ConstTensorView::of(data.data(), {1, 8}),
                      .gate = ConstTensorView::of(data.data() + 8, {1, 8}),
                      .y = TensorView::of(data.data() + 16, {1, 8})};
            }),
            "swiglu: x is in host memory, expected it in memory of a CUDA device");
  ThreadPool pool(1);
  EXPECT_EQ(test::error_of([&] { cpu::swiglu(device_args(), pool); }),
            "swiglu: x is in memory of CUDA device 0, expected it in host memory");
}

}  // namespace
}  // namespace adder
