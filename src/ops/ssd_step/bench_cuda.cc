#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/ssd_step/ref.h"
#include "ops/ssd_step/ssd_step.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kHeaddim = 64;
constexpr std::int64_t kDstate = 128;

struct Shape {
  std::int64_t batch, nheads;
  DType dtype, state_dtype;

  std::int64_t d_inner() const { return nheads * kHeaddim; }
};

// Memory of one call, as a Mamba-2 layer makes it: x, B and C are parts of the convolution's row.
struct Tensors {
  Tensor xBC, dt, A, D, dt_bias, state, y;

  Tensors(const Shape& s, std::uint64_t seed)
      : xBC(device_normals(s.dtype, {s.batch, s.d_inner() + 2 * kDstate}, 8 * seed)),
        dt(device_normals(s.dtype, {s.batch, s.nheads}, 8 * seed + 1)),
        A(device_uniforms(DType::f32, {s.nheads}, -16, -1, 8 * seed + 2)),
        D(device_normals(DType::f32, {s.nheads}, 8 * seed + 3)),
        dt_bias(device_uniforms(DType::f32, {s.nheads}, -6, -3, 8 * seed + 4)),
        state(initial_state(s, seed)),
        y(device_poison(s.dtype, {s.batch, s.d_inner()})) {}

  static Tensor initial_state(const Shape& s, std::uint64_t seed) {
    return device_normals(s.state_dtype, {s.batch, s.nheads, kHeaddim, kDstate}, 8 * seed + 5);
  }

  SsdStepArgs args(const Shape& s) const {
    SsdStepArgs out;
    out.x = xBC.view.narrow(1, 0, s.d_inner()).split_last(s.nheads);
    out.B = xBC.view.narrow(1, s.d_inner(), kDstate).split_last(1);
    out.C = xBC.view.narrow(1, s.d_inner() + kDstate, kDstate).split_last(1);
    out.dt = dt.view;
    out.A = A.view;
    out.D = D.view;
    out.dt_bias = dt_bias.view;
    out.dt_softplus = true;
    out.state = state.view;
    out.y = y.view.split_last(s.nheads);
    return out;
  }
};

// The last sequence against the definition.
double error_of(const Shape& s, const Tensors& tensors, std::uint64_t seed) {
  const SsdStepArgs args = tensors.args(s);
  const std::int64_t last = s.batch - 1;
  const auto rows = [](const ConstTensorView& view, std::int64_t first, std::int64_t count) {
    return to_doubles(read_rows(view, first, count));
  };
  const auto vector = [&](const ConstTensorView& view) { return rows(view.unsqueeze0(), 0, 1); };
  const auto x = rows(args.x[last], 0, s.nheads);
  const auto B = rows(args.B[last], 0, 1);
  const auto C = rows(args.C[last], 0, 1);
  const auto dt = rows(args.dt, last, 1);
  const auto A = vector(args.A);
  const auto D = vector(args.D);
  const auto dt_bias = vector(args.dt_bias);
  const Tensor initial = Tensors::initial_state(s, seed);
  double error = 0;
  for (std::size_t h = 0; h < static_cast<std::size_t>(s.nheads); ++h) {
    const auto head = static_cast<std::int64_t>(h);
    std::vector<double> state = rows(ConstTensorView(initial.view)[last][head], 0, kHeaddim);
    std::vector<double> y(kHeaddim);
    ref::ssd_step_head<double>(ref::time_step(dt[h] + dt_bias[h], DtOptions{.softplus = true}),
                               A[h], std::span(x).subspan(h * kHeaddim, kHeaddim), B, C,
                               std::span(D).subspan(h, 1), state, y);
    error = std::max(
        {error, largest_error(read_rows(ConstTensorView(args.y)[last], head, 1), y),
         largest_error(read_rows(ConstTensorView(args.state)[last][head], 0, kHeaddim), state)});
  }
  return error;
}

// What rounding a number to a dtype costs at most: to nearest, and states to either neighbour.
double allowed_error(const Shape& s) {
  if (s.state_dtype == DType::bf16) return 8e-3;
  return s.dtype == DType::f32 ? 1e-5 : 4e-3;
}

DeviceCase case_of(const Shape& s) {
  const auto channels = static_cast<double>(s.batch * s.d_inner());
  const double states = channels * static_cast<double>(kDstate);
  const auto element = static_cast<double>(size_of(s.dtype));
  return {
      .shape = fmt::format("batch {}, {} heads of {}, dstate {}, {}, state {}", s.batch, s.nheads,
                           kHeaddim, kDstate, name_of(s.dtype), name_of(s.state_dtype)),
      .bytes = 2.0 * static_cast<double>(size_of(s.state_dtype)) * states +
               2.0 * element * channels + 2.0 * element * static_cast<double>(s.batch * kDstate),
      .flops = 5.0 * states,
      .allowed_error = allowed_error(s),
      .prepare = [s](std::uint64_t seed) {
        const Tensors tensors(s, seed);
        return DeviceWork{
            .call = [=](cuda::Stream stream) { cuda::ssd_step(tensors.args(s), stream); },
            .error = [=] { return error_of(s, tensors, seed); }};
      }};
}

}  // namespace

DeviceOpBenchmark ssd_step_device_benchmark() {
  DeviceOpBenchmark out{
      .name = "ssd_step", .description = "state-space dual of Mamba-2, one token", .cases = {}};
  // Layers of mamba2-2.7b and mamba2-130m.
  for (DType state : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 8, 64, 256}) {
      out.cases.push_back(case_of({batch, 80, DType::bf16, state}));
    }
    out.cases.push_back(case_of({64, 24, DType::bf16, state}));
    out.cases.push_back(case_of({64, 80, DType::f32, state}));
  }
  return out;
}

}  // namespace adder::bench
