#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/linear/ref.h"
#include "ops/linear_step/linear_step.h"
#include "ops/rms_norm/ref.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kWidth = 4;

// The projection into a Mamba-2 mixer: a norm before it, a convolution of all but z and dt after
// it.
struct Tensors {
  std::int64_t d_inner;
  Tensor residual, x, new_residual, norm_weight, weight, y, conv_weight, conv_state, conv_y;

  Tensors(std::int64_t batch, std::int64_t d_model, std::int64_t nheads, std::uint64_t seed)
      : d_inner(2 * d_model),
        residual(device_normals(DType::f32, {batch, d_model}, 5 * seed)),
        x(device_normals(DType::bf16, {batch, d_model}, 5 * seed + 1)),
        new_residual(device_poison(DType::f32, {batch, d_model})),
        norm_weight(device_normals(DType::f32, {d_model}, 5 * seed + 2)),
        weight(device_normals(DType::bf16, {2 * d_inner + 256 + nheads, d_model}, 5 * seed + 3)),
        y(device_poison(DType::bf16, {batch, weight.view.dim(0)})),
        conv_weight(device_normals(DType::f32, {d_inner + 256, kWidth}, 5 * seed + 4)),
        conv_state(device_normals(DType::f32, {batch, kWidth - 1, d_inner + 256}, 5 * seed)),
        conv_y(device_poison(DType::bf16, {batch, d_inner + 256})) {}

  LinearStepArgs args() const {
    return {.x = x.view,
            .weight = weight.view,
            .y = y.view,
            .norm = LinearStepNorm{.residual = residual.view,
                                   .new_residual = new_residual.view,
                                   .weight = norm_weight.view},
            .gated_norm = {},
            .conv = LinearStepConv{.begin = d_inner,
                                   .weight = conv_weight.view,
                                   .state = conv_state.view,
                                   .y = conv_y.view}};
  }
};

// z of each sequence against the definition.
double error_of(const Tensors& t) {
  double error = 0;
  const auto norm_weight = to_doubles(read_rows(t.norm_weight.view.unsqueeze0(), 0, 1));
  const auto weight = to_doubles(read_rows(t.weight.view, 0, t.d_inner));
  for (std::int64_t s = 0; s < t.x.view.dim(0); ++s) {
    auto residual = to_doubles(read_rows(t.residual.view, s, 1));
    const auto x = to_doubles(read_rows(t.x.view, s, 1));
    std::vector<double> v(x.size());
    ref::rms_norm_row<double>(residual, x, norm_weight, 1e-5, v);
    std::vector<double> truth(static_cast<std::size_t>(t.d_inner));
    ref::linear_row<double>(v, weight, {}, truth);
    std::vector<float> got = read_rows(t.y.view, s, 1);
    got.resize(truth.size());
    error = std::max(error, largest_error(got, truth));
  }
  return error;
}

DeviceCase case_of(std::int64_t batch, std::int64_t d_model, std::int64_t nheads) {
  const std::int64_t out = 4 * d_model + 256 + nheads;
  const auto weights = static_cast<double>(out * d_model);
  const auto rows = static_cast<double>(batch);
  return {.shape = fmt::format("{} x {}: norm, {} columns, convolution, bf16", batch, d_model, out),
          .bytes = 2 * weights +
                   rows * (10.0 * static_cast<double>(d_model) + 2.0 * static_cast<double>(out) +
                           24.0 * static_cast<double>(2 * d_model + 256)),
          .flops = 2 * rows * weights,
          .allowed_error = 8e-3,
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(batch, d_model, nheads, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::linear_step(tensors.args(), stream); },
                .error = [=] { return error_of(tensors); }};
          }};
}

}  // namespace

DeviceOpBenchmark linear_step_device_benchmark() {
  DeviceOpBenchmark out{.name = "linear_step",
                        .description = "a decode step's projection, norm before, convolution after",
                        .cases = {}};
  // mamba2-2.7b and mamba2-130m.
  for (std::int64_t batch : {1, 2, 4, 8}) out.cases.push_back(case_of(batch, 2560, 80));
  for (std::int64_t batch : {1, 8}) out.cases.push_back(case_of(batch, 768, 24));
  return out;
}

}  // namespace adder::bench
