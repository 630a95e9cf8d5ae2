#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/selective_scan_step/ref.h"
#include "ops/selective_scan_step/selective_scan_step.h"

namespace adder::bench {
namespace {

struct Shape {
  std::int64_t batch, d_inner;
  DType dtype;
  std::int64_t dstate = 16;
  DType state_dtype = DType::f32;
};

// Memory of one call, as a Mamba layer makes it: x and z are the halves of in_proj's row.
struct Tensors {
  Tensor xz, dt, A, B, C, D, dt_bias, state, y;

  Tensors(const Shape& s, std::uint64_t seed)
      : xz(device_normals(s.dtype, {s.batch, 2 * s.d_inner}, 8 * seed)),
        dt(device_normals(s.dtype, {s.batch, s.d_inner}, 8 * seed + 1)),
        A(device_uniforms(DType::f32, {s.d_inner, s.dstate}, -16, -0.5, 8 * seed + 2)),
        B(device_normals(s.dtype, {s.batch, 1, s.dstate}, 8 * seed + 3)),
        C(device_normals(s.dtype, {s.batch, 1, s.dstate}, 8 * seed + 4)),
        D(device_normals(DType::f32, {s.d_inner}, 8 * seed + 5)),
        dt_bias(device_uniforms(DType::f32, {s.d_inner}, -6, -3, 8 * seed + 6)),
        state(initial_state(s, seed)),
        y(device_poison(s.dtype, {s.batch, s.d_inner})) {}

  static Tensor initial_state(const Shape& s, std::uint64_t seed) {
    return device_normals(s.state_dtype, {s.batch, s.d_inner, s.dstate}, 8 * seed + 7);
  }

  SelectiveScanStepArgs args(const Shape& s) const {
    SelectiveScanStepArgs out;
    out.x = xz.view.narrow(1, 0, s.d_inner);
    out.z = xz.view.narrow(1, s.d_inner, s.d_inner);
    out.dt = dt.view;
    out.A = A.view;
    out.B = B.view;
    out.C = C.view;
    out.D = D.view;
    out.dt_bias = dt_bias.view;
    out.state = state.view;
    out.y = y.view;
    return out;
  }
};

// The last sequence against the definition.
double error_of(const Shape& s, const Tensors& tensors, std::uint64_t seed) {
  const SelectiveScanStepArgs args = tensors.args(s);
  const std::int64_t last = s.batch - 1;
  const auto row = [&](const ConstTensorView& view) {
    return to_doubles(read_rows(view, last, 1));
  };
  const auto all = [&](const ConstTensorView& view, std::int64_t count) {
    return to_doubles(read_rows(view, 0, count));
  };
  const auto group = [&](const ConstTensorView& view) { return all(view[last], 1); };
  const Tensor initial = Tensors::initial_state(s, seed);
  std::vector<double> state = all(ConstTensorView(initial.view)[last], s.d_inner);
  std::vector<double> y(static_cast<std::size_t>(s.d_inner));
  ref::selective_scan_step<double>(row(args.x), row(args.dt), all(args.A, s.d_inner), group(args.B),
                                   group(args.C), all(args.D.unsqueeze0(), 1), row(args.z),
                                   all(args.dt_bias.unsqueeze0(), 1), args.dt_softplus,
                                   static_cast<std::size_t>(s.dstate), state, y);
  return std::max(largest_error(read_rows(args.y, last, 1), y),
                  largest_error(read_rows(ConstTensorView(args.state)[last], 0, s.d_inner), state));
}

// What rounding a number to a dtype costs at most: to nearest, and states to either neighbour.
double allowed_error(const Shape& s) {
  if (s.state_dtype == DType::bf16) return 8e-3;
  return s.dtype == DType::f32 ? 1e-5 : 4e-3;
}

DeviceCase case_of(const Shape& s) {
  const auto channels = static_cast<double>(s.batch * s.d_inner);
  const auto states = channels * static_cast<double>(s.dstate);
  const auto element = static_cast<double>(size_of(s.dtype));
  const auto constants = static_cast<double>(s.d_inner * (s.dstate + 2));
  const auto state_element = static_cast<double>(size_of(s.state_dtype));
  return {.shape = fmt::format("batch {}, d_inner {}, dstate {}, {}, state {}", s.batch, s.d_inner,
                               s.dstate, name_of(s.dtype), name_of(s.state_dtype)),
          .bytes = 2.0 * state_element * states + 4.0 * element * channels + 4.0 * constants +
                   2.0 * element * static_cast<double>(s.batch * s.dstate),
          .flops = 7.0 * states + 15.0 * channels,  // an exponential counts as one
          .allowed_error = allowed_error(s),
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{.call =
                                  [=](cuda::Stream stream) {
                                    cuda::selective_scan_step(tensors.args(s), stream);
                                  },
                              .error = [=] { return error_of(s, tensors, seed); }};
          }};
}

}  // namespace

DeviceOpBenchmark selective_scan_step_device_benchmark() {
  DeviceOpBenchmark out{.name = "selective_scan_step",
                        .description = "one token of the selective scan of Mamba-1",
                        .cases = {}};
  // Layers of mamba-2.8b and mamba-130m.
  for (std::int64_t batch : {1, 8, 64, 256, 512}) {
    out.cases.push_back(case_of({batch, 5120, DType::bf16}));
  }
  for (std::int64_t batch : {1, 64}) out.cases.push_back(case_of({batch, 1536, DType::bf16}));
  out.cases.push_back(case_of({64, 5120, DType::f32}));
  out.cases.push_back(case_of({64, 5120, DType::bf16, 128}));
  for (std::int64_t batch : {8, 64, 256, 512}) {
    out.cases.push_back(case_of({batch, 5120, DType::bf16, 16, DType::bf16}));
  }
  return out;
}

}  // namespace adder::bench
