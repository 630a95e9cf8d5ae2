#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/linear/linear.h"
#include "ops/linear/ref.h"

namespace adder::bench {
namespace {

struct Shape {
  std::int64_t ntokens, in, out;
  DType dtype;
  /// Adds to a y of float32, as to the residual stream.
  bool accumulate = false;

  DType y_dtype() const { return accumulate ? DType::f32 : dtype; }
};

struct Tensors {
  Shape shape;
  Tensor x, weight, y, workspace;

  Tensors(const Shape& s, std::uint64_t seed)
      : shape(s),
        x(device_normals(s.dtype, {s.ntokens, s.in}, 3 * seed)),
        weight(device_normals(s.dtype, {s.out, s.in}, 3 * seed + 1)),
        y(y_before(s, seed)),
        workspace(device_poison(DType::u8, {workspace_bytes()})) {}

  static Tensor y_before(const Shape& s, std::uint64_t seed) {
    if (!s.accumulate) return device_poison(s.dtype, {s.ntokens, s.out});
    return device_normals(DType::f32, {s.ntokens, s.out}, 3 * seed + 2);
  }

  LinearArgs args() const {
    return {.x = x.view, .bias = {}, .y = y.view, .accumulate = shape.accumulate};
  }
  std::int64_t workspace_bytes() const {
    return static_cast<std::int64_t>(cuda::linear_workspace_bytes(args(), weight.view));
  }
  std::span<std::byte> memory() const {
    return {static_cast<std::byte*>(workspace.view.data),
            static_cast<std::size_t>(workspace.view.size_bytes())};
  }
};

// Some tokens against the definition.
double error_of(const Tensors& tensors, std::uint64_t seed) {
  double error = 0;
  const Tensor before = Tensors::y_before(tensors.shape, seed);
  const std::int64_t last = tensors.x.view.dim(0) - 1;
  const auto weight = to_doubles(read_rows(tensors.weight.view, 0, tensors.weight.view.dim(0)));
  for (std::int64_t token : {std::int64_t{0}, last}) {
    const auto x = to_doubles(read_rows(tensors.x.view, token, 1));
    std::vector<double> truth(static_cast<std::size_t>(tensors.y.view.dim(1)));
    std::vector<double> sum;  // the definition's bias
    if (tensors.shape.accumulate) sum = to_doubles(read_rows(before.view, token, 1));
    ref::linear_row<double>(x, weight, sum, truth);
    error = std::max(error, largest_error(read_rows(tensors.y.view, token, 1), truth));
  }
  return error;
}

DeviceCase case_of(const Shape& s) {
  const auto size = static_cast<double>(size_of(s.dtype));
  const double y_bytes = (s.accumulate ? 2.0 : 1.0) * static_cast<double>(size_of(s.y_dtype()));
  // Of 16-bit numbers the products are exact, and only their sum is rounded.
  const double sum_error = s.dtype == DType::f32 ? 1e-5 : 1e-4;
  return {.shape = fmt::format("{} tokens, {} to {}, {}{}", s.ntokens, s.in, s.out,
                               name_of(s.dtype), s.accumulate ? " added to f32" : ""),
          .bytes = size * static_cast<double>(s.in * s.out + s.ntokens * s.in) +
                   y_bytes * static_cast<double>(s.ntokens * s.out),
          .flops = 2.0 * static_cast<double>(s.ntokens * s.in * s.out),
          .allowed_error = s.y_dtype() == DType::f32 ? sum_error : 8e-3,
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{.call =
                                  [=](cuda::Stream stream) {
                                    cuda::linear(tensors.args(), tensors.weight.view,
                                                 tensors.memory(), stream);
                                  },
                              .error = [=] { return error_of(tensors, seed); }};
          }};
}

}  // namespace

DeviceOpBenchmark linear_device_benchmark() {
  DeviceOpBenchmark out{.name = "linear", .description = "projections of a model", .cases = {}};
  // in_proj and out_proj of mamba2-2.7b and mamba2-130m: steps of one sequence and of many,
  // prompts.
  for (std::int64_t ntokens : {1, 2, 4, 8, 16, 64, 128, 512, 2048, 8192}) {
    out.cases.push_back(case_of({ntokens, 2560, 10576, DType::bf16}));
    out.cases.push_back(case_of({ntokens, 5120, 2560, DType::bf16}));
  }
  for (std::int64_t ntokens : {1, 2048}) {
    out.cases.push_back(case_of({ntokens, 768, 3352, DType::bf16}));
    out.cases.push_back(case_of({ntokens, 1536, 768, DType::bf16}));
  }
  for (std::int64_t ntokens : {128, 256, 512, 1024, 2048, 8192}) {
    out.cases.push_back(case_of({ntokens, 5120, 2560, DType::bf16, /*accumulate=*/true}));
  }
  out.cases.push_back(case_of({1, 2560, 50288, DType::bf16}));
  out.cases.push_back(case_of({2048, 2560, 10576, DType::f32}));
  return out;
}

}  // namespace adder::bench
