#pragma once

// A problem for ssd_step: every tensor with random contents, in any float type, and its definition.
// Tests change what they are about.

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/half.h"
#include "core/tensor.h"
#include "ops/ssd_step/ref.h"
#include "ops/ssd_step/ssd_step.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder::test {

struct StepShape {
  std::int64_t batch = 2;
  std::int64_t nheads = 4;
  std::int64_t headdim = 16;
  std::int64_t ngroups = 2;
  std::int64_t dstate = 16;
  DType dtype = DType::f32;
  DType state_dtype = DType::f32;
};

struct StepOutput {
  std::vector<float> y;
  std::vector<float> state;
};

/// Random contents for every argument. Tests change what they are about.
struct StepCase {
  StepShape shape;
  Tensor x, z, B, C, dt, A, D, dt_bias;
  std::vector<float> state;
  SsdStepArgs args;  ///< without state and y

  explicit StepCase(const StepShape& s, std::uint64_t stream = 0) : shape(s) {
    Random random(stream);
    const auto tensor = [&](std::initializer_list<std::int64_t> dims, DType dtype) {
      // Bounded, so that the largest errors come from many elements and not from one outlier.
      const std::vector<float> values =
          random.uniforms(ConstTensorView(nullptr, dtype, dims).numel(), -1, 1);
      return convert(ConstTensorView(values.data(), DType::f32, dims), dtype);
    };
    x = tensor({s.batch, s.nheads, s.headdim}, s.dtype);
    z = tensor({s.batch, s.nheads, s.headdim}, s.dtype);
    B = tensor({s.batch, s.ngroups, s.dstate}, s.dtype);
    C = tensor({s.batch, s.ngroups, s.dstate}, s.dtype);
    dt = tensor({s.batch, s.nheads}, DType::f32);
    A = tensor({s.nheads}, DType::f32);
    for (float& a : A.span<float>()) a = -std::abs(a);
    D = tensor({s.nheads, s.headdim}, DType::f32);
    dt_bias = tensor({s.nheads}, DType::f32);
    const Tensor held = tensor({s.batch, s.nheads, s.headdim, s.dstate}, s.state_dtype);
    const Tensor floats = convert(held.view, DType::f32);
    state.assign(floats.span<float>().begin(), floats.span<float>().end());
    args.x = x.view;
    args.dt = dt.view;
    args.A = A.view;
    args.B = B.view;
    args.C = C.view;
    args.D = D.view;
    args.z = z.view;
    args.dt_bias = dt_bias.view;
    args.dt_softplus = true;
  }

  template <typename T>
  StepOutput run_as(ThreadPool& pool) const {
    const StepShape& s = shape;
    Guarded<T> y(s.batch * s.nheads * s.headdim);
    Guarded<float> updated(static_cast<std::int64_t>(state.size()));
    updated.fill(state);
    SsdStepArgs call = args;
    call.y = y.view({s.batch, s.nheads, s.headdim});
    call.state = updated.view({s.batch, s.nheads, s.headdim, s.dstate});
    cpu::ssd_step(call, pool);
    EXPECT_TRUE(y.intact());
    EXPECT_TRUE(updated.intact());
    StepOutput out;
    for (T v : y.span()) out.y.push_back(to_float(v));
    out.state.assign(updated.span().begin(), updated.span().end());
    return out;
  }

  StepOutput run(ThreadPool& pool) const {
    return shape.dtype == DType::f32    ? run_as<float>(pool)
           : shape.dtype == DType::bf16 ? run_as<bf16>(pool)
                                        : run_as<f16>(pool);
  }

  template <typename Real>
  void reference(std::vector<Real>& y, std::vector<Real>& new_state) const {
    const auto reals = [](const ConstTensorView& view) {
      const Tensor floats = convert(view, DType::f32);
      return std::vector<Real>(floats.span<float>().begin(), floats.span<float>().end());
    };
    const DtOptions options{args.dt_softplus, args.dt_min, args.dt_max};
    const auto headdim = static_cast<std::size_t>(shape.headdim);
    const auto dstate = static_cast<std::size_t>(shape.dstate);
    new_state.assign(state.begin(), state.end());
    y.clear();
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.nheads; ++h) {
        const std::int64_t group = h / (shape.nheads / shape.ngroups);
        const auto index = static_cast<std::size_t>(b * shape.nheads + h);
        const Real raw =
            static_cast<Real>(reals(args.dt[b].narrow(0, h, 1))[0]) +
            (args.dt_bias.defined() ? static_cast<Real>(args.dt_bias.as<float>()[h]) : Real{0});
        const auto D_row = !args.D.defined() ? std::vector<Real>()
                           : args.D.rank == 2
                               ? reals(args.D[h])
                               : std::vector<Real>{static_cast<Real>(args.D.as<float>()[h])};
        std::vector<Real> row(headdim);
        ref::ssd_step_head<Real>(
            ref::time_step(raw, options), static_cast<Real>(A.span<float>()[h]),
            reals(args.x[b][h]), reals(args.B[b][group]), reals(args.C[b][group]), D_row,
            std::span(new_state).subspan(index * headdim * dstate, headdim * dstate), row);
        if (args.z.defined()) {
          const auto gate = reals(args.z[b][h]);
          for (std::size_t p = 0; p < headdim; ++p) row[p] *= ref::silu(gate[p]);
        }
        y.insert(y.end(), row.begin(), row.end());
      }
    }
  }

  void expect_right(const StepOutput& got) const {
    std::vector<double> y64;
    std::vector<double> state64;
    std::vector<float> y32;
    std::vector<float> state32;
    reference(y64, state64);
    reference(y32, state32);
    for (float& v : y32) {
      v = shape.dtype == DType::bf16  ? to_float(to_bf16(v))
          : shape.dtype == DType::f16 ? to_float(to_f16(v))
                                      : v;
    }
    EXPECT_TRUE(as_good_as_plain(got.y, y64, y32)) << "y";
    EXPECT_TRUE(as_good_as_plain(got.state, state64, state32)) << "state";
  }
};

}  // namespace adder::test
