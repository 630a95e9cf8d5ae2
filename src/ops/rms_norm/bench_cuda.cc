#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/rms_norm/ref.h"
#include "ops/rms_norm/rms_norm.h"

namespace adder::bench {
namespace {

struct Tensors {
  Tensor residual, x, weight, y;
  bool adds;  ///< x

  Tensors(std::int64_t ntokens, std::int64_t d_model, DType dtype, bool with_x, std::uint64_t seed)
      : residual(initial_residual(ntokens, d_model, seed)),
        x(device_normals(dtype, {ntokens, d_model}, 3 * seed + 1)),
        weight(device_normals(DType::f32, {d_model}, 3 * seed + 2)),
        y(device_poison(dtype, {ntokens, d_model})),
        adds(with_x) {}

  static Tensor initial_residual(std::int64_t ntokens, std::int64_t d_model, std::uint64_t seed) {
    return device_normals(DType::f32, {ntokens, d_model}, 3 * seed);
  }

  RmsNormArgs args() const {
    return {.residual = residual.view,
            .x = adds ? ConstTensorView(x.view) : ConstTensorView(),
            .weight = weight.view,
            .y = y.view};
  }
};

// Some tokens against the definition.
double error_of(const RmsNormArgs& args, const ConstTensorView& initial_residual) {
  double error = 0;
  const auto weight = to_doubles(read_rows(args.weight.unsqueeze0(), 0, 1));
  const std::int64_t last = args.residual.dim(0) - 1;
  for (std::int64_t token : {std::int64_t{0}, last / 3, last}) {
    auto residual = to_doubles(read_rows(initial_residual, token, 1));
    std::vector<double> x;
    if (args.x.defined()) x = to_doubles(read_rows(args.x, token, 1));
    std::vector<double> truth(residual.size());
    ref::rms_norm_row<double>(residual, x, weight, 1e-5, truth);
    error = std::max({error, largest_error(read_rows(args.y, token, 1), truth),
                      largest_error(read_rows(args.residual, token, 1), residual)});
  }
  return error;
}

DeviceCase case_of(std::int64_t ntokens, std::int64_t d_model, DType dtype, bool with_x = true) {
  const auto count = static_cast<double>(ntokens * d_model);
  const double passes = with_x ? 2.0 : 1.0;  // the residual read and written, x and y
  return {.shape = fmt::format("{} tokens, d_model {}, f32 residual{}, {}", ntokens, d_model,
                               with_x ? "" : " alone", name_of(dtype)),
          .bytes = passes * (4.0 + static_cast<double>(size_of(dtype))) * count +
                   4.0 * static_cast<double>(d_model),
          .flops = 5.0 * count,
          .allowed_error = dtype == DType::f32 ? 1e-5 : 4e-3,
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(ntokens, d_model, dtype, with_x, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::rms_norm(tensors.args(), stream); },
                .error =
                    [=] {
                      const Tensor initial = Tensors::initial_residual(ntokens, d_model, seed);
                      return error_of(tensors.args(), initial.view);
                    }};
          }};
}

}  // namespace

DeviceOpBenchmark rms_norm_device_benchmark() {
  DeviceOpBenchmark out{.name = "rms_norm",
                        .description = "root-mean-square norm with residual addition",
                        .cases = {}};
  // mamba2-2.7b and mamba2-130m: prompts, and steps of many sequences.
  for (std::int64_t ntokens : {1, 256, 1024, 32768}) {
    out.cases.push_back(case_of(ntokens, 2560, DType::bf16));
  }
  // What is left where the projection before adds to the residual stream itself.
  for (std::int64_t ntokens : {1024, 8192, 32768}) {
    out.cases.push_back(case_of(ntokens, 2560, DType::bf16, /*with_x=*/false));
  }
  out.cases.push_back(case_of(8192, 2560, DType::bf16));
  out.cases.push_back(case_of(32768, 2560, DType::f32));
  out.cases.push_back(case_of(32768, 768, DType::bf16));
  return out;
}

}  // namespace adder::bench
