#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <vector>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "core/check.h"
#include "ops/linear_step/linear_step.h"
#include "ops/ssd_step/ssd_step.h"
#include "ops/step_program/step_program.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kHeaddim = 64;
constexpr std::int64_t kDstate = 128;

struct Shape {
  std::int64_t batch, d_model, layers;

  std::int64_t d_inner() const { return 2 * d_model; }
  std::int64_t nheads() const { return d_inner() / kHeaddim; }
  std::int64_t channels() const { return d_inner() + 2 * kDstate; }
  std::int64_t d_in_proj() const { return d_inner() + channels() + nheads(); }
  std::int64_t weights() const { return (d_in_proj() + d_inner()) * d_model * layers; }
};

Tensor matrix(std::int64_t out, std::int64_t in, std::uint64_t seed) {
  const double limit = std::sqrt(3.0 / static_cast<double>(in));
  return device_uniforms(DType::bf16, {out, in}, -limit, limit, seed);
}

// A layer of Mamba-2 for a token of each sequence.
struct Layer {
  Layer(const Shape& s, std::uint64_t seed)
      : norm_weight(device_uniforms(DType::f32, {s.d_model}, 0.5, 1.5, seed)),
        in_proj(matrix(s.d_in_proj(), s.d_model, seed + 1)),
        conv_weight(device_normals(DType::f32, {s.channels(), kWidth}, seed + 2)),
        conv_state(device_normals(DType::f32, {s.batch, kWidth - 1, s.channels()}, seed + 3)),
        A(device_uniforms(DType::f32, {s.nheads()}, -4.0, -1.0, seed + 4)),
        D(device_normals(DType::f32, {s.nheads()}, seed + 5)),
        state(device_normals(DType::f32, {s.batch, s.nheads(), kHeaddim, kDstate}, seed + 6)),
        gate_weight(device_uniforms(DType::f32, {s.d_inner()}, 0.5, 1.5, seed + 7)),
        out_proj(matrix(s.d_model, s.d_inner(), seed + 8)),
        residual(device_poison(DType::f32, {s.batch, s.d_model})),
        zxbcdt(device_poison(DType::bf16, {s.batch, s.d_in_proj()})),
        xBC(device_poison(DType::bf16, {s.batch, s.channels()})),
        y(device_poison(DType::bf16, {s.batch, s.d_inner()})),
        out(device_poison(DType::bf16, {s.batch, s.d_model})) {}

  Tensor norm_weight, in_proj, conv_weight, conv_state, A, D, state, gate_weight, out_proj;
  Tensor residual, zxbcdt, xBC, y, out;
};

class Stack {
 public:
  Stack(const Shape& shape, std::uint64_t seed)
      : shape_(shape),
        residual_(device_normals(DType::f32, {shape.batch, shape.d_model}, 1000 * seed)),
        x_(device_normals(DType::bf16, {shape.batch, shape.d_model}, 1000 * seed + 1)) {
    for (std::int64_t i = 0; i < shape.layers; ++i) {
      layers_.emplace_back(shape, 1000 * seed + 10 * static_cast<std::uint64_t>(i + 1));
    }
  }

  // Calls run(args) for each operation.
  template <typename Run>
  void each(const Run& run) const {
    ConstTensorView residual = residual_.view;
    ConstTensorView x = x_.view;
    const std::int64_t d_inner = shape_.d_inner();
    for (const Layer& l : layers_) {
      run(LinearStepArgs{.x = x,
                         .weight = l.in_proj.view,
                         .y = l.zxbcdt.view,
                         .norm = LinearStepNorm{.residual = residual,
                                                .new_residual = l.residual.view,
                                                .weight = l.norm_weight.view},
                         .gated_norm = {},
                         .conv = LinearStepConv{.begin = d_inner,
                                                .weight = l.conv_weight.view,
                                                .state = l.conv_state.view,
                                                .y = l.xBC.view}});
      run(SsdStepArgs{.x = l.xBC.view.narrow(1, 0, d_inner).split_last(shape_.nheads()),
                      .dt = l.zxbcdt.view.narrow(1, d_inner + shape_.channels(), shape_.nheads()),
                      .A = l.A.view,
                      .B = l.xBC.view.narrow(1, d_inner, kDstate).split_last(1),
                      .C = l.xBC.view.narrow(1, d_inner + kDstate, kDstate).split_last(1),
                      .D = l.D.view,
                      .z = {},
                      .dt_bias = {},
                      .dt_softplus = true,
                      .state = l.state.view,
                      .y = l.y.view.split_last(shape_.nheads())});
      run(LinearStepArgs{.x = l.y.view,
                         .weight = l.out_proj.view,
                         .y = l.out.view,
                         .norm = {},
                         .gated_norm = LinearStepGatedNorm{.z = l.zxbcdt.view.narrow(1, 0, d_inner),
                                                           .weight = l.gate_weight.view},
                         .conv = {}});
      residual = l.residual.view;
      x = l.out.view;
    }
  }

  const Tensor& result() const { return layers_.back().out; }

 private:
  Shape shape_;
  Tensor residual_, x_;
  std::vector<Layer> layers_;
};

struct OneByOne {
  cuda::Stream stream;
  void operator()(const LinearStepArgs& args) const { cuda::linear_step(args, stream); }
  void operator()(const SsdStepArgs& args) const { cuda::ssd_step(args, stream); }
};

DeviceWork prepare(const Shape& shape, std::uint64_t seed) {
  const auto stack = std::make_shared<const Stack>(shape, seed);
  cuda::StepProgram program;
  stack->each([&](const auto& args) {
    check(program.add(args), "step_program: an operation of a layer is none for a program");
  });
  const std::shared_ptr<const cuda::StepKernel> kernel = program.compile();
  return {.call = [kernel, stack](cuda::Stream stream) { kernel->launch(stream); },
          .error =
              [=] {
                // From the same state as the first call had.
                const Stack other(shape, seed);
                other.each(OneByOne{nullptr});
                return relative_difference(stack->result().view, other.result().view);
              }};
}

DeviceCase case_of(const char* model, const Shape& shape) {
  const auto rows = static_cast<double>(shape.batch * shape.layers);
  const auto states = rows * static_cast<double>(shape.d_inner() * kDstate);
  const auto weights = static_cast<double>(shape.weights());
  return {
      .shape = fmt::format("{}: {} layers, {} sequences, bf16", model, shape.layers, shape.batch),
      .bytes = 2 * weights + 8 * states,
      .flops = 2 * static_cast<double>(shape.batch) * weights + 5 * states,
      .allowed_error = 3e-2,
      .prepare = [=](std::uint64_t seed) { return prepare(shape, seed); }};
}

}  // namespace

DeviceOpBenchmark step_program_device_benchmark() {
  DeviceOpBenchmark out{
      .name = "step_program", .description = "layers of a decode step in one kernel", .cases = {}};
  for (std::int64_t batch : {1, 2, 4}) {
    out.cases.push_back(case_of("mamba2-2.7b", {batch, 2560, 8}));
    out.cases.push_back(case_of("mamba2-130m", {batch, 768, 24}));
  }
  return out;
}

}  // namespace adder::bench
