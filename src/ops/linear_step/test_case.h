#pragma once

// Problems for linear_step on a CUDA device, and the operations one by one.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/linear/linear.h"
#include "ops/linear_step/linear_step.h"
#include "ops/rms_norm/rms_norm.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/random.h"

namespace adder::test::linear_step {

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
  DType v_dtype() const { return has_x() ? x : y; }
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
    Random random(static_cast<std::uint64_t>(c.batch * 7919 + c.in * 31 + c.out));
    x = rounded(random.normals(c.batch * c.in), c.x);
    z = rounded(random.normals(c.batch * c.in), c.x);
    residual = random.normals(c.batch * c.in);
    norm_weight = random.normals(c.in);
    weight = random.normals(c.out * c.in);
    for (float& w : weight) w /= std::sqrt(static_cast<float>(c.in));
    weight = rounded(weight, c.weight);
    bias = random.normals(c.out);
    conv_weight = random.normals(c.channels() * c.width);
    conv_bias = random.normals(c.channels());
    state = random.normals(c.batch * (c.width - 1) * c.channels());
  }
  std::vector<float> x, z, residual, norm_weight, weight, bias, conv_weight, conv_bias, state;
};

struct Result {
  std::vector<float> y, conv_y, state, residual, v;
};

// The operations one by one, in float32 on the CPU.
inline Result one_by_one(const Case& c, const Data& d) {
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
    out.v = v;
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
        v_(c.v_dtype(), c.batch * c.in),
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
      args.norm->y = v_.view({c.batch, c.in});
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

  Result result(cuda::Stream stream = nullptr) const {
    for (const DeviceBuffer* buffer : {&v_, &y_, &state_, &conv_y_, &new_residual_}) {
      EXPECT_TRUE(buffer->intact(stream));
    }
    return {y_.values(stream), conv_y_.values(stream), state_.values(stream),
            new_residual_.values(stream), v_.values(stream)};
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
  DeviceBuffer x_, z_, residual_, new_residual_, norm_weight_, weight_, bias_, v_, y_, conv_weight_,
      conv_bias_, state_, conv_y_;

 public:
  LinearStepArgs args;
};

// `got` is what the operations one by one give.
inline void expect_right(const Case& c, const Data& d, const Result& got,
                         double f32_tolerance = 5e-6) {
  SCOPED_TRACE(c.name());
  const Result truth = one_by_one(c, d);
  // In float32 both sides round, in different orders.
  const double tolerance = c.y == DType::f32 ? f32_tolerance : c.y == DType::f16 ? 6e-4 : 5e-3;
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
  EXPECT_LE(relative_error(y, y_truth), tolerance);
  if (c.has_norm()) {
    const double of_v = c.v_dtype() == DType::f32 ? 1e-6 : 5e-3;
    EXPECT_LE(relative_error(got.v, to_double(truth.v)), of_v);
  }
  if (c.has_norm() && c.has_x()) {
    EXPECT_TRUE(same_bits(got.residual, truth.residual));
  }
  if (c.conv) {
    EXPECT_LE(relative_error(got.conv_y, to_double(truth.conv_y)), tolerance);
    EXPECT_LE(relative_error(got.state, to_double(truth.state)), tolerance);
  }
}

inline constexpr Before kEverything[] = {Before::nothing,          Before::norm,
                                         Before::norm_of_residual, Before::gated_norm,
                                         Before::gate_after_norm,  Before::gate};

}  // namespace adder::test::linear_step
