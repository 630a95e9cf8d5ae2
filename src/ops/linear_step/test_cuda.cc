#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

#include "cuda/timing.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/linear/linear.h"
#include "ops/linear_step/linear_step.h"
#include "ops/rms_norm/rms_norm.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using LinearStepCuda = test::OnDevice;
using test::DeviceBuffer;
using test::error_of;

enum class Before { nothing, norm, norm_of_residual, gated_norm, gate_after_norm, gate };

struct Case {
  std::int64_t batch = 1, in = 64, out = 40;
  Before before = Before::nothing;
  std::int64_t ngroups = 1;
  bool conv = false;
  bool bias = false;
  std::int64_t width = 4;
  DType x = DType::f32, weight = DType::f32, y = DType::f32;

  bool has_norm() const { return before == Before::norm || before == Before::norm_of_residual; }
  bool has_x() const { return before != Before::norm_of_residual; }
  bool has_gate() const { return !has_norm() && before != Before::nothing; }
  std::int64_t conv_begin() const { return out / 4; }
  std::int64_t channels() const { return out / 2; }
  std::string name() const {
    return fmt::format("{} x {} -> {}, before {}, groups {}, conv {}, bias {}, {} {} {}", batch, in,
                       out, static_cast<int>(before), ngroups, conv, bias, name_of(x),
                       name_of(weight), name_of(y));
  }
};

struct Data {
  explicit Data(const Case& c) {
    test::Random random(static_cast<std::uint64_t>(c.batch * 7919 + c.in * 31 + c.out));
    x = test::rounded(random.normals(c.batch * c.in), c.x);
    z = test::rounded(random.normals(c.batch * c.in), c.x);
    residual = random.normals(c.batch * c.in);
    norm_weight = random.normals(c.in);
    weight = random.normals(c.out * c.in);
    for (float& w : weight) w /= std::sqrt(static_cast<float>(c.in));
    weight = test::rounded(weight, c.weight);
    bias = random.normals(c.out);
    conv_weight = random.normals(c.channels() * c.width);
    conv_bias = random.normals(c.channels());
    state = random.normals(c.batch * (c.width - 1) * c.channels());
  }
  std::vector<float> x, z, residual, norm_weight, weight, bias, conv_weight, conv_bias, state;
};

struct Result {
  std::vector<float> y, conv_y, state, residual;
};

// The operations one by one, in float32 on the CPU.
Result one_by_one(const Case& c, const Data& d) {
  ThreadPool pool(1);
  Result out;
  std::vector<float> v = d.x;
  const auto matrix = [](auto& values, std::int64_t rows, std::int64_t columns) {
    return TensorView(values.data(), DType::f32, {rows, columns});
  };
  const auto constant = [](const std::vector<float>& values,
                           std::initializer_list<std::int64_t> dims) {
    return ConstTensorView::of(values.data(), dims);
  };
  out.residual = d.residual;
  if (c.has_norm()) {
    v.resize(d.residual.size());
    cpu::rms_norm({.residual = matrix(out.residual, c.batch, c.in),
                   .x = c.has_x() ? constant(d.x, {c.batch, c.in}) : ConstTensorView(),
                   .weight = constant(d.norm_weight, {c.in}),
                   .y = matrix(v, c.batch, c.in)},
                  pool);
  } else if (c.has_gate()) {
    const bool normalize = c.before != Before::gate;
    cpu::gated_rms_norm({.y = constant(d.x, {c.batch, c.in}),
                         .z = constant(d.z, {c.batch, c.in}),
                         .weight = normalize ? constant(d.norm_weight, {c.in}) : ConstTensorView(),
                         .out = matrix(v, c.batch, c.in),
                         .ngroups = c.ngroups,
                         .norm_before_gate = c.before == Before::gate_after_norm,
                         .norm = normalize},
                        pool);
  }
  out.y.resize(static_cast<std::size_t>(c.batch * c.out));
  cpu::linear({.x = matrix(v, c.batch, c.in),
               .bias = c.bias ? constant(d.bias, {c.out}) : ConstTensorView(),
               .y = matrix(out.y, c.batch, c.out)},
              cpu::pack_linear(constant(d.weight, {c.out, c.in}), DType::f32, pool), pool);
  if (!c.conv) return out;
  out.state = d.state;
  out.conv_y.resize(static_cast<std::size_t>(c.batch * c.channels()));
  std::vector<std::int32_t> offsets;
  for (std::int32_t s = 0; s <= c.batch; ++s) offsets.push_back(s);
  cpu::causal_conv1d(
      {.x = matrix(out.y, c.batch, c.out).narrow(1, c.conv_begin(), c.channels()),
       .weight = constant(d.conv_weight, {c.channels(), c.width}),
       .bias = constant(d.conv_bias, {c.channels()}),
       .y = matrix(out.conv_y, c.batch, c.channels()),
       .conv_state = TensorView(out.state.data(), DType::f32, {c.batch, c.width - 1, c.channels()}),
       .cu_seqlens = ConstTensorView::of(offsets.data(), {c.batch + 1})},
      pool);
  return out;
}

class DeviceCall {
 public:
  // x, z and the residual are columns of matrices that are `gap` elements wider.
  DeviceCall(const Case& c, const Data& d, std::int64_t gap = 0)
      : case_(c),
        gap_(gap),
        x_(c.x, widened(d.x)),
        z_(c.x, widened(d.z)),
        residual_(DType::f32, widened(d.residual)),
        new_residual_(DType::f32, c.batch * c.in),
        norm_weight_(DType::f32, d.norm_weight),
        weight_(c.weight, d.weight),
        bias_(DType::f32, d.bias),
        y_(c.y, c.batch * c.out),
        conv_weight_(DType::f32, d.conv_weight),
        conv_bias_(DType::f32, d.conv_bias),
        state_(DType::f32, d.state),
        conv_y_(c.x, c.batch * c.channels()) {
    const auto rows = [&](const DeviceBuffer& buffer) {
      return buffer.view({c.batch, c.in + gap}).narrow(1, 0, c.in);
    };
    args.weight = weight_.view({c.out, c.in});
    args.y = y_.view({c.batch, c.out});
    if (c.has_x()) args.x = rows(x_);
    if (c.bias) args.bias = bias_.view({c.out});
    if (c.has_norm()) {
      args.norm = LinearStepNorm{.residual = rows(residual_), .weight = norm_weight_.view({c.in})};
      if (c.has_x()) args.norm->new_residual = new_residual_.view({c.batch, c.in});
    }
    if (c.has_gate()) {
      const bool normalize = c.before != Before::gate;
      args.gated_norm =
          LinearStepGatedNorm{.z = rows(z_),
                              .weight = normalize ? norm_weight_.view({c.in}) : TensorView(),
                              .ngroups = c.ngroups,
                              .norm_before_gate = c.before == Before::gate_after_norm,
                              .normalize = normalize};
    }
    if (c.conv) {
      args.conv = LinearStepConv{.begin = c.conv_begin(),
                                 .weight = conv_weight_.view({c.channels(), c.width}),
                                 .bias = conv_bias_.view({c.channels()}),
                                 .state = state_.view({c.batch, c.width - 1, c.channels()}),
                                 .y = conv_y_.view({c.batch, c.channels()})};
    }
  }

  Result run(cuda::Stream stream = nullptr) {
    cuda::linear_step(args, stream);
    return result(stream);
  }
  Result result(cuda::Stream stream = nullptr) const {
    for (const DeviceBuffer* buffer : {&y_, &state_, &conv_y_, &new_residual_}) {
      EXPECT_TRUE(buffer->intact(stream));
    }
    return {y_.values(stream), conv_y_.values(stream), state_.values(stream),
            new_residual_.values(stream)};
  }
  void set_state(std::span<const float> state) { state_.fill(state); }

 private:
  std::vector<float> widened(const std::vector<float>& rows) const {
    std::vector<float> out;
    const auto length = static_cast<std::ptrdiff_t>(case_.in);
    for (auto at = rows.begin(); at != rows.end(); at += length) {
      out.insert(out.end(), at, at + length);
      out.insert(out.end(), static_cast<std::size_t>(gap_), NAN);
    }
    return out;
  }

  Case case_;
  std::int64_t gap_;
  DeviceBuffer x_, z_, residual_, new_residual_, norm_weight_, weight_, bias_, y_, conv_weight_,
      conv_bias_, state_, conv_y_;

 public:
  LinearStepArgs args;
};

void expect_right(const Case& c, std::int64_t gap = 0) {
  SCOPED_TRACE(c.name());
  const Data d(c);
  const Result truth = one_by_one(c, d);
  const Result got = DeviceCall(c, d, gap).run();
  // In float32 both sides round, in different orders.
  const double tolerance = c.y == DType::f32 ? 5e-6 : c.y == DType::f16 ? 6e-4 : 5e-3;
  std::vector<float> y;
  std::vector<double> y_truth;
  for (std::int64_t i = 0; i < c.batch * c.out; ++i) {
    const std::int64_t column = i % c.out - c.conv_begin();
    const auto at = static_cast<std::size_t>(i);
    if (c.conv && column >= 0 && column < c.channels()) {
      EXPECT_TRUE(std::isnan(got.y[at])) << "written though it is the convolution's";
      continue;
    }
    y.push_back(got.y[at]);
    y_truth.push_back(truth.y[at]);
  }
  EXPECT_LE(test::relative_error(y, y_truth), tolerance);
  if (c.has_norm() && c.has_x()) {
    EXPECT_TRUE(test::same_bits(got.residual, truth.residual));
  }
  if (c.conv) {
    EXPECT_LE(test::relative_error(got.conv_y, test::to_double(truth.conv_y)), tolerance);
    EXPECT_LE(test::relative_error(got.state, test::to_double(truth.state)), tolerance);
  }
}

constexpr Before kEverything[] = {Before::nothing,          Before::norm,
                                  Before::norm_of_residual, Before::gated_norm,
                                  Before::gate_after_norm,  Before::gate};

TEST_F(LinearStepCuda, EqualsTheOperationsOneByOne) {
  for (Before before : kEverything) {
    for (std::int64_t batch = 1; batch <= cuda::kMaxLinearStepBatch; ++batch) {
      for (bool conv : {false, true}) {
        expect_right({.batch = batch, .in = 768, .out = 300, .before = before, .conv = conv});
      }
    }
  }
}

TEST_F(LinearStepCuda, EveryDtype) {
  const DType all[][3] = {
      {DType::f32, DType::f32, DType::f32},   {DType::f32, DType::bf16, DType::f32},
      {DType::f32, DType::f16, DType::f32},   {DType::bf16, DType::bf16, DType::bf16},
      {DType::bf16, DType::bf16, DType::f32}, {DType::f16, DType::f16, DType::f16},
      {DType::f16, DType::f16, DType::f32}};
  for (const auto& [x, weight, y] : all) {
    for (Before before : kEverything) {
      for (std::int64_t batch : {1, 2, 5}) {
        expect_right({.batch = batch,
                      .in = 520,
                      .out = 77,
                      .before = before,
                      .conv = x == y,
                      .bias = true,
                      .x = x,
                      .weight = weight,
                      .y = y});
      }
    }
  }
}

// Fewer rows than blocks, groups and steps that spans cut anywhere, and wide rows.
TEST_F(LinearStepCuda, RowsAndColumnsOfEveryNumber) {
  for (std::int64_t batch : {1, 2, 3, 8}) {
    for (std::int64_t in : {4, 8, 124, 128, 132, 1000, 2560, 5120}) {
      for (std::int64_t out : {1, 3, 131, 133, 1000}) {
        if (in * out > 1500000) continue;
        expect_right({.batch = batch, .in = in, .out = out, .before = Before::norm});
      }
    }
  }
}

TEST_F(LinearStepCuda, GroupsWidthsAndGaps) {
  for (std::int64_t ngroups : {1, 2, 8}) {
    for (Before before : {Before::gated_norm, Before::gate_after_norm}) {
      expect_right({.batch = 3, .in = 256, .out = 90, .before = before, .ngroups = ngroups}, 12);
    }
  }
  for (std::int64_t width = 2; width <= 8; ++width) {
    expect_right({.batch = 2, .in = 64, .out = 90, .conv = true, .width = width}, 4);
  }
}

TEST_F(LinearStepCuda, ASequenceDependsOnNoOther) {
  for (Before before : kEverything) {
    Case c{.batch = 8, .in = 384, .out = 200, .before = before, .conv = true};
    const Data all(c);
    for (std::int64_t batch : {5, 8}) {
      c.batch = batch;
      Data some = all;
      for (auto* values : {&some.x, &some.z, &some.residual}) {
        values->resize(static_cast<std::size_t>(batch * c.in));
        for (std::size_t i = static_cast<std::size_t>(c.in); i < values->size(); ++i) {
          (*values)[i] *= batch == 5 ? 0.5F : 3.0F;
        }
      }
      some.state.resize(static_cast<std::size_t>(batch * 3 * c.channels()));
      static Result first;
      const Result got = DeviceCall(c, some).run();
      const auto row = static_cast<std::size_t>(c.out);
      if (batch == 5) {
        first = got;
      } else {
        EXPECT_TRUE(
            test::same_bits(std::span(got.y).first(row / 4), std::span(first.y).first(row / 4)));
        EXPECT_TRUE(test::same_bits(std::span(got.conv_y).first(row / 2),
                                    std::span(first.conv_y).first(row / 2)));
      }
    }
  }
}

TEST_F(LinearStepCuda, RunsAndReplaysAgreeBitForBit) {
  const Case c{.batch = 2, .in = 2560, .out = 700, .before = Before::norm, .conv = true};
  const Data d(c);
  DeviceCall call(c, d);
  const Result first = call.run();
  cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { cuda::linear_step(call.args, stream); });
  for (int i = 0; i < 3; ++i) {
    call.set_state(d.state);
    graph.launch(stream);
    const Result got = call.result(stream);
    EXPECT_TRUE(test::same_bits(got.conv_y, first.conv_y));
    EXPECT_TRUE(test::same_bits(got.state, first.state));
    EXPECT_TRUE(test::same_bits(std::span(got.y).first(100), std::span(first.y).first(100)));
  }
}

TEST_F(LinearStepCuda, SaysWhatItDoesNotTake) {
  const auto takes = [](const Case& c, std::int64_t gap = 0) {
    return cuda::can_linear_step(DeviceCall(c, Data(c), gap).args);
  };
  EXPECT_TRUE(takes({}));
  EXPECT_TRUE(takes({.batch = 8}));
  EXPECT_FALSE(takes({.batch = 9}));
  EXPECT_FALSE(takes({.in = 66}));
  EXPECT_FALSE(takes({.batch = 2}, 1));
  EXPECT_FALSE(takes({.batch = 8, .in = 8192, .out = 4}));
}

TEST(LinearStepCudaErrors, NameTheArgumentThatIsWrong) {
  float memory[2] = {};
  const Device where{DeviceType::cuda, 0};
  const auto view = [&](std::initializer_list<std::int64_t> dims, int i = 0) {
    return TensorView(&memory[i], DType::f32, dims, where);
  };
  const LinearStepArgs good{.x = view({2, 8}), .weight = view({4, 8}), .y = view({2, 4}, 1)};
  const auto error = [&](auto&& change) {
    LinearStepArgs args = good;
    change(args);
    return error_of([&] { validate(args); });
  };
  EXPECT_EQ(error([](LinearStepArgs&) {}), "no error");
  EXPECT_EQ(error([&](auto& a) {
              a.x = view({2, 9});
            }),
            "linear_step: x has shape (2, 9), expected (2, 8)");
  EXPECT_EQ(error([&](auto& a) { a.x = {}; }),
            "linear_step: x is missing, expected it without a norm");
  EXPECT_EQ(error([&](auto& a) {
              a.norm = LinearStepNorm{.residual = view({2, 8})};
            }),
            "linear_step: norm.new_residual is missing, expected a tensor of shape (2, 8)");
  EXPECT_EQ(error([&](auto& a) {
              a.norm = LinearStepNorm{.residual = view({2, 8}), .new_residual = view({2, 8})};
            }),
            "linear_step: norm.new_residual is norm.residual, expected another tensor");
  EXPECT_EQ(error([&](auto& a) {
              a.gated_norm = LinearStepGatedNorm{.z = view({2, 8}), .ngroups = 3};
            }),
            "linear_step: gated_norm.ngroups is 3, expected a divisor of 8 columns");
  EXPECT_EQ(error([&](auto& a) {
              a.conv = LinearStepConv{.begin = 3, .weight = view({2, 4})};
            }),
            "linear_step: conv.begin is 3, expected 2 channels to end within 4 columns");
}

}  // namespace
}  // namespace adder
