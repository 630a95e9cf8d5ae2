#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/linear/linear.h"
#include "ops/linear/ref.h"

namespace adder::bench {
namespace {

struct Tensors {
  Tensor x, weight, y, workspace;

  Tensors(std::int64_t ntokens, std::int64_t in, std::int64_t out, DType dtype, std::uint64_t seed)
      : x(device_normals(dtype, {ntokens, in}, 2 * seed)),
        weight(device_normals(dtype, {out, in}, 2 * seed + 1)),
        y(device_poison(dtype, {ntokens, out})),
        workspace(device_poison(DType::u8, {workspace_bytes()})) {}

  LinearArgs args() const { return {.x = x.view, .bias = {}, .y = y.view}; }
  std::int64_t workspace_bytes() const {
    return static_cast<std::int64_t>(cuda::linear_workspace_bytes(args(), weight.view));
  }
  std::span<std::byte> memory() const {
    return {static_cast<std::byte*>(workspace.view.data),
            static_cast<std::size_t>(workspace.view.size_bytes())};
  }
};

// Some tokens against the definition.
double error_of(const Tensors& tensors) {
  double error = 0;
  const std::int64_t last = tensors.x.view.dim(0) - 1;
  const auto weight = to_doubles(read_rows(tensors.weight.view, 0, tensors.weight.view.dim(0)));
  for (std::int64_t token : {std::int64_t{0}, last}) {
    const auto x = to_doubles(read_rows(tensors.x.view, token, 1));
    std::vector<double> truth(static_cast<std::size_t>(tensors.y.view.dim(1)));
    ref::linear_row<double>(x, weight, {}, truth);
    error = std::max(error, largest_error(read_rows(tensors.y.view, token, 1), truth));
  }
  return error;
}

DeviceCase case_of(std::int64_t ntokens, std::int64_t in, std::int64_t out, DType dtype) {
  const auto size = static_cast<double>(size_of(dtype));
  return {.shape = fmt::format("{} tokens, {} to {}, {}", ntokens, in, out, name_of(dtype)),
          .bytes = size * static_cast<double>(in * out + ntokens * (in + out)),
          .flops = 2.0 * static_cast<double>(ntokens * in * out),
          .allowed_error = dtype == DType::f32 ? 1e-5 : 8e-3,
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(ntokens, in, out, dtype, seed);
            return DeviceWork{.call =
                                  [=](cuda::Stream stream) {
                                    cuda::linear(tensors.args(), tensors.weight.view,
                                                 tensors.memory(), stream);
                                  },
                              .error = [=] { return error_of(tensors); }};
          }};
}

}  // namespace

DeviceOpBenchmark linear_device_benchmark() {
  DeviceOpBenchmark out{.name = "linear", .description = "projections of a model", .cases = {}};
  // in_proj and out_proj of mamba2-2.7b and mamba2-130m: steps of one sequence and of many,
  // prompts.
  for (std::int64_t ntokens : {1, 2, 4, 8, 16, 64, 128, 512, 2048, 8192}) {
    out.cases.push_back(case_of(ntokens, 2560, 10576, DType::bf16));
    out.cases.push_back(case_of(ntokens, 5120, 2560, DType::bf16));
  }
  for (std::int64_t ntokens : {1, 2048}) {
    out.cases.push_back(case_of(ntokens, 768, 3352, DType::bf16));
    out.cases.push_back(case_of(ntokens, 1536, 768, DType::bf16));
  }
  out.cases.push_back(case_of(1, 2560, 50288, DType::bf16));
  out.cases.push_back(case_of(2048, 2560, 10576, DType::f32));
  return out;
}

}  // namespace adder::bench
